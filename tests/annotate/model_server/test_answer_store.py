"""The first stored answer about a document is kept, and later readers get it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.annotate.model_server import answer_store
from datakit.annotate.model_server.answer_store import Answer, AnswerStore, open_documents
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.errors import CorruptError
from datakit.storage.ids import partition_range
from tests.support.partitions import identity

CONFIG = ModelServerConfig("https://host/v1", "m", "{text}", number=(0, 5))
IDS = sorted(identity(str(number)) for number in range(40))


def store(folder: Path) -> AnswerStore:
    return AnswerStore.open(str(folder), CONFIG)


def partitions(bits: int) -> list[list[str]]:
    """The documents of each partition of a source with 2**bits partitions."""
    ranges = [partition_range(index, bits) for index in range(1 << bits)]
    return [[one for one in IDS if first <= one <= last] for first, last in ranges]


def test_answers_are_found_by_all_later_readers_whatever_their_partitions(tmp_path: Path) -> None:
    first = store(tmp_path)
    first.read(IDS)
    first.add([Answer(one, str(place)) for place, one in enumerate(IDS)])
    for bits in (0, 2, 5):
        found: dict[str, Answer] = {}
        for part in partitions(bits):
            found |= store(tmp_path).read(part)
        assert {one: answer.answer for one, answer in found.items()} == {one: str(i) for i, one in enumerate(IDS)}


@given(data=st.data())
def test_the_first_answer_wins_in_any_order_of_reads_and_writes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("store")
    writers = [store(folder) for _ in range(3)]
    for writer in writers:
        writer.read(IDS)
    first: dict[str, str] = {}
    for step in range(data.draw(st.integers(1, 8))):
        writer = data.draw(st.sampled_from(writers))
        some = data.draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=6, unique=True))
        stored = writer.add([Answer(one, f"{step}") for one in some])
        for one in some:
            assert stored[one].answer == first.setdefault(one, f"{step}"), "each writer learns which answer won"
        found = store(folder).read(IDS)
        assert {one: answer.answer for one, answer in found.items()} == first
    lines = [line for path in folder.rglob("0*.jsonl") for line in path.read_text().splitlines()]
    assert len(lines) == len(first), "no document has two answers"


def test_writers_at_the_same_time_store_each_answer_once(tmp_path: Path) -> None:
    def write(number: int) -> dict[str, Answer]:
        writer = store(tmp_path)
        writer.read(IDS)
        return writer.add([Answer(one, f"{number}") for one in IDS])

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(write, range(8)))
    assert all(one == results[0] for one in results)
    assert store(tmp_path).read(IDS) == results[0]


def test_failure_is_final_until_more_attempts_are_allowed(tmp_path: Path) -> None:
    first = store(tmp_path)
    first.add([Answer(IDS[0], failure="no number", attempts=4), Answer(IDS[1], "3")])
    stored = first.read(IDS)
    assert open_documents(IDS[:3], stored, 4) == [IDS[2]]
    assert open_documents(IDS[:3], stored, 5) == [IDS[0], IDS[2]]
    late = store(tmp_path)
    late.read(IDS)
    late.add([Answer(IDS[0], "2"), Answer(IDS[1], "5")])
    found = store(tmp_path).read(IDS)
    assert (found[IDS[0]].answer, found[IDS[1]].answer) == ("2", "3")


def test_memory_is_that_of_the_documents_that_were_read_last(tmp_path: Path) -> None:
    """Whatever else the store holds, and however many partitions were read before."""
    first = store(tmp_path)
    first.add([Answer(one, "1") for one in IDS])
    reader = store(tmp_path)
    for part in partitions(3):
        assert reader.read(part).keys() == reader._known.keys() == set(part)
    mine, others = IDS[::2], IDS[1::2]
    store(tmp_path / "new").add([Answer(one, "2") for one in others])
    late = store(tmp_path / "new")
    late.read([])
    assert late.add([Answer(one, "3") for one in mine]).keys() == late._known.keys() == set(mine)


def test_partition_reads_only_the_files_of_its_ranges_and_reports_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the first source of the root had a single partition."""
    store(tmp_path).add([Answer(one, "1") for one in IDS])
    read, files, reports = answer_store._read, list[str](), list[int]()

    def noted(url: str) -> Iterator[Answer]:
        files.append(url)
        return read(url)

    monkeypatch.setattr(answer_store, "_read", noted)
    part = partitions(3)[2]
    store(tmp_path).read(part, lambda: reports.append(len(files)))
    assert {int(Path(url).parent.name[:4]) for url in files} == {int(one[:2], 16) for one in part}
    assert 0 < len(files) <= len(part) < len(IDS) and reports == list(range(1, len(files) + 1))


def test_answers_in_the_layout_of_another_version_are_refused(tmp_path: Path) -> None:
    store(tmp_path)
    (path,) = tmp_path.rglob("settings.json")
    earlier = json.loads(path.read_text())
    del earlier["ranges"]
    for more in ({"range_bits": 8}, {"ranges": 128}):
        path.write_text(json.dumps(earlier | more))
        with pytest.raises(CorruptError, match=r"another version of datakit .*remove the folder to ask again"):
            store(tmp_path)


def test_other_settings_have_another_store(tmp_path: Path) -> None:
    store(tmp_path).add([Answer(IDS[0], "1")])
    other = ModelServerConfig("https://host/v1", "m", "{text}", number=(0, 4))
    assert AnswerStore.find(str(tmp_path), other) is None
    assert AnswerStore.open(str(tmp_path), other).read(IDS) == {}


def test_damage_is_reported(tmp_path: Path) -> None:
    store(tmp_path).add([Answer(IDS[0], "1")])
    (path,) = tmp_path.rglob("0*.jsonl")
    path.write_bytes(path.read_bytes()[:-4] + b"\n")
    with pytest.raises(CorruptError, match="restore it, or remove it to ask again"):
        store(tmp_path).read(IDS)
    (settings,) = tmp_path.rglob("settings.json")
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"settings": {}}))
    with pytest.raises(CorruptError, match="other settings"):
        store(tmp_path)
