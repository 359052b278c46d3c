"""The first stored answer about a document is kept, and later readers get it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.annotate.model_server.answer_store import Answer, AnswerStore, open_documents
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.errors import CorruptError
from datakit.storage.ids import partition_range
from tests.support.partitions import identity

CONFIG = ModelServerConfig("https://host/v1", "m", "{text}", number=(0, 5))
IDS = sorted(identity(str(number)) for number in range(40))
EVERYTHING = partition_range(0, 0)


def store(folder: Path, bits: int = 2) -> AnswerStore:
    return AnswerStore.open(str(folder), CONFIG, bits)


def test_answers_are_found_by_all_later_readers_whatever_their_partitions(tmp_path: Path) -> None:
    first = store(tmp_path)
    first.read(*EVERYTHING)
    first.add([Answer(one, str(place)) for place, one in enumerate(IDS)])
    for bits in (0, 2, 5):
        found: dict[str, Answer] = {}
        for index in range(1 << bits):
            found |= store(tmp_path, bits).read(*partition_range(index, bits))
        assert {one: answer.answer for one, answer in found.items()} == {one: str(i) for i, one in enumerate(IDS)}


@given(data=st.data())
def test_the_first_answer_wins_in_any_order_of_reads_and_writes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("store")
    writers = [store(folder, data.draw(st.integers(0, 3))) for _ in range(3)]
    for writer in writers:
        writer.read(*EVERYTHING)
    first: dict[str, str] = {}
    for step in range(data.draw(st.integers(1, 8))):
        writer = data.draw(st.sampled_from(writers))
        some = data.draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=6, unique=True))
        stored = writer.add([Answer(one, f"{step}") for one in some])
        for one in some:
            assert stored[one].answer == first.setdefault(one, f"{step}"), "each writer learns which answer won"
        found = store(folder, 0).read(*EVERYTHING)
        assert {one: answer.answer for one, answer in found.items()} == first
    lines = [line for path in folder.rglob("0*.jsonl") for line in path.read_text().splitlines()]
    assert len(lines) == len(first), "no document has two answers"


def test_writers_at_the_same_time_store_each_answer_once(tmp_path: Path) -> None:
    def write(number: int) -> dict[str, Answer]:
        writer = store(tmp_path, 1)
        writer.read(*EVERYTHING)
        return writer.add([Answer(one, f"{number}") for one in IDS])

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(write, range(8)))
    assert all(one == results[0] for one in results)
    assert store(tmp_path).read(*EVERYTHING) == results[0]


def test_failure_is_final_until_more_attempts_are_allowed(tmp_path: Path) -> None:
    first = store(tmp_path)
    first.add([Answer(IDS[0], failure="no number", attempts=4), Answer(IDS[1], "3")])
    stored = first.read(*EVERYTHING)
    assert open_documents(IDS[:3], stored, 4) == [IDS[2]]
    assert open_documents(IDS[:3], stored, 5) == [IDS[0], IDS[2]]
    late = store(tmp_path)
    late.read(*EVERYTHING)
    late.add([Answer(IDS[0], "2"), Answer(IDS[1], "5")])
    found = store(tmp_path).read(*EVERYTHING)
    assert (found[IDS[0]].answer, found[IDS[1]].answer) == ("2", "3")


def test_other_settings_have_another_store(tmp_path: Path) -> None:
    store(tmp_path).add([Answer(IDS[0], "1")])
    other = ModelServerConfig("https://host/v1", "m", "{text}", number=(0, 4))
    assert AnswerStore.find(str(tmp_path), other) is None
    assert AnswerStore.open(str(tmp_path), other, 0).read(*EVERYTHING) == {}


def test_damage_is_reported(tmp_path: Path) -> None:
    store(tmp_path, 0).add([Answer(IDS[0], "1")])
    (path,) = tmp_path.rglob("0*.jsonl")
    path.write_bytes(path.read_bytes()[:-4] + b"\n")
    with pytest.raises(CorruptError, match="restore it, or remove it to ask again"):
        store(tmp_path, 0).read(*EVERYTHING)
    (settings,) = tmp_path.rglob("settings.json")
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"settings": {}}))
    with pytest.raises(CorruptError, match="other settings"):
        store(tmp_path, 0)
