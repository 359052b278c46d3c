"""The phase that asks: faults are retried, a document without a valid answer is left out, and answers are kept."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from datakit.annotate import stage
from datakit.annotate.model_server import ask, dialogue
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.engine.task import Step, StepInput
from datakit.errors import DatakitError, ModelServerError, PartialError, TaskError
from datakit.storage.manifest import Manifest
from datakit.storage.parquet import read_shard
from tests.support.annotate.model_server import PROMPT, Answering, ChatServer, Fault, chat_server, completion
from tests.support.dedup.dedup_inputs import write_source
from tests.support.engine.inline import finish_inline, run_plan_inline, run_task_inline

TEXTS = [f"text {number}" for number in range(30)]
POISON = TEXTS[7]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialogue, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(dialogue, "FIRST_OUTAGE_WAIT", 0.01)
    monkeypatch.setattr(ask, "POLL_SECONDS", 0.05)


def number_of(text: str, number: int = 1) -> str:
    return str(int(text.removeprefix("text ")) % 6) if text.startswith("text") else "1"


def except_poison(fault: str | Fault) -> Answering:
    return lambda text, number: fault if text == POISON else number_of(text)


def annotated(
    folder: Path, server: ChatServer, name: str = "annotate", limit: float = 0, bits: int = 1, **more: Any
) -> Manifest:
    """Run the stage, over texts that are written once."""
    source = written(folder, bits)
    config = ModelServerConfig(server.url, "m", PROMPT, number=(0, 5), **more)
    parameters = {"annotators": {"quality": config.content(), "script": {}}, "max_quarantined": limit}
    operations = {"paths": {"quality": config.operations()}, "answers": "../.answers"}
    step = Step("annotate", "s", str(folder / name), "0" * 32, parameters, (source,), operations)
    output, results = run_plan_inline(stage.plan(step), step.directory)
    return finish_inline(step, output, results)


def written(folder: Path, bits: int) -> StepInput:
    return write_source(folder / f"source-{bits}", "s", TEXTS, bits=bits)


def scores(folder: Path, manifest: Manifest, name: str = "annotate") -> dict[str, float]:
    paths = [part.path for part in manifest.partitions if "/quality/" in part.path]
    return {row["id"]: row["score"] for path in paths for row in read_shard(str(folder / name / path)).to_pylist()}


def expected(folder: Path, bits: int = 1) -> dict[str, float]:
    source = written(folder, bits)
    found = [read_shard(f"{source.directory}/{part.path}") for part in source.manifest.partitions]
    return {row["id"]: float(number_of(row["text"])) for table in found for row in table.to_pylist()}


def test_answers_become_attributes(tmp_path: Path) -> None:
    with chat_server(number_of) as server:
        manifest = annotated(tmp_path, server)
    assert scores(tmp_path, manifest) == expected(tmp_path)
    assert manifest.counters["annotate/documents"] == manifest.counters["annotate/quality"] == len(TEXTS)
    assert server.counts() == dict.fromkeys(TEXTS, 1)
    assert manifest.identity != manifest.fingerprint and manifest.details["tables"] == ["quality", "script"]


PASSING = {
    "429": Fault(429, {"retry-after": "0.1"}), "500": Fault(500), "503": Fault(503, {"retry-after": "0.1"}),
    "reset": Fault(reset=True), "truncated": Fault(body=completion("3"), cut=30), "garbage": Fault(body=b"<html>"),
    "sentence": "I would say 3", "outside": "17", "empty": "",
}  # fmt: skip


@pytest.mark.parametrize("name", PASSING)
def test_faults_that_pass_change_no_byte(tmp_path: Path, name: str) -> None:
    with chat_server(number_of) as server:
        good = annotated(tmp_path, server, "good")
    answer: Answering = lambda text, number: PASSING[name] if number < 3 else number_of(text)  # noqa: E731
    with chat_server(answer) as server:
        manifest = annotated(tmp_path, server)
    assert [(part.path, part.xxh3) for part in manifest.partitions] == [(p.path, p.xxh3) for p in good.partitions]
    assert set(server.counts().values()) == {3}


LASTING = {
    "sentence": "I would say 3", "400": Fault(400), "413": Fault(413), "null": Fault(body=completion(None)),
    "500": Fault(500), "reset": Fault(reset=True), "garbage": Fault(body=b"<html>"),
}  # fmt: skip


@pytest.mark.parametrize("name", LASTING)
def test_document_without_a_valid_answer_is_left_out_and_named(tmp_path: Path, name: str) -> None:
    """Even if it makes the server fail: the others are answered."""
    with chat_server(except_poison(LASTING[name])) as server:
        manifest = annotated(tmp_path, server, limit=1)
        again = annotated(tmp_path, server, "again", limit=1)
    whole = expected(tmp_path)
    found = scores(tmp_path, manifest)
    (lost,) = whole.keys() - found.keys()
    assert found == {one: score for one, score in whole.items() if one != lost}
    assert manifest.counters["annotate/quarantined"] == manifest.quarantine.records == 1
    assert manifest.counters["annotate/documents"] == manifest.counters["annotate/script"] == len(TEXTS) - 1
    lines = Path(tmp_path, "annotate", "quarantine", "records.jsonl").read_text()
    assert "model server quality: " in json.loads(lines)["reason"] and POISON not in lines
    tries = {"400": 1, "413": 1, "sentence": 4, "null": 4}.get(name, 5)  # without an answer, the probe and one more try
    assert server.counts()[POISON] == tries, "a stored failure is not asked about again"
    assert again.identity == manifest.identity


def test_too_many_failures_end_the_step(tmp_path: Path) -> None:
    with chat_server(except_poison("no")) as server, pytest.raises(PartialError, match=r"1 record.*cannot be used"):
        annotated(tmp_path, server)


def test_more_attempts_ask_again_about_failures_only(tmp_path: Path) -> None:
    with chat_server(lambda text, number: "no" if text == POISON and number < 6 else number_of(text)) as server:
        first = annotated(tmp_path, server, "first", limit=1)
        manifest = annotated(tmp_path, server, limit=1, attempts=6)
    assert server.counts() == dict.fromkeys(TEXTS, 1) | {POISON: 6}
    assert scores(tmp_path, manifest) == expected(tmp_path) and first.identity != manifest.identity


@pytest.mark.parametrize("answer", ["no", Fault(400)], ids=str)
def test_recipe_on_which_every_document_fails_ends_early(tmp_path: Path, answer: str | Fault) -> None:
    with chat_server(lambda text, number: answer) as server:
        with pytest.raises(TaskError, match=r"model server 'quality' .* documents have failed; the last one: "):
            annotated(tmp_path, server, limit=1.0, bits=0, concurrency=2)
        assert len(server.counts()) < len(TEXTS)
    assert not list(tmp_path.glob(".answers/*/0*/*.jsonl")), "these failures are not kept"


def test_server_that_is_down_ends_the_task_and_keeps_answers(tmp_path: Path) -> None:
    """No document is blamed."""
    limited = iter(range(12))
    with chat_server(lambda text, number: number_of(text) if next(limited, None) is not None else Fault(500)) as server:
        with pytest.raises(TaskError, match=r"model server 127.0.0.1:\d+ does not answer \(HTTP 500\); .*run again"):
            annotated(tmp_path, server, limit=1.0, bits=0, concurrency=2)
        server.answer = number_of
        before = len(server.requests)
        manifest = annotated(tmp_path, server, bits=0)
    assert len(server.requests) - before == len(TEXTS) - 12, "answers that were received are not asked for again"
    assert scores(tmp_path, manifest) == expected(tmp_path, 0)


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_refusal_of_all_requests_ends_the_step(tmp_path: Path, status: int) -> None:
    with chat_server(lambda text, number: Fault(status)) as server:
        with pytest.raises(ModelServerError, match=f"HTTP {status}"):
            annotated(tmp_path, server, limit=1.0, concurrency=2)
        assert len(server.requests) <= 4


def test_server_that_puts_off_all_requests_ends_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialogue, "MOST_BUSY", 3)
    late = pytest.raises(TaskError, match="put off a request 3 times in a row")
    with chat_server(lambda text, number: Fault(429)) as server, late:
        annotated(tmp_path, server, concurrency=1)


def test_server_that_answers_differently_each_time_changes_nothing(tmp_path: Path) -> None:
    numbers = iter(range(10**6))
    with chat_server(lambda text, number: str(next(numbers) % 6)) as server:
        first = annotated(tmp_path, server, "first")
        manifests = [annotated(tmp_path, server, f"again-{bits}", bits=bits) for bits in (1, 0, 3)]
    assert len(server.requests) == len(TEXTS)
    assert manifests[0].identity == first.identity
    assert all(scores(tmp_path, one, f"again-{bits}") == scores(tmp_path, first, "first")
               for one, bits in zip(manifests, (1, 0, 3), strict=True))  # fmt: skip


def test_other_answers_give_another_identity(tmp_path: Path) -> None:
    with chat_server(number_of) as server:
        first = annotated(tmp_path / "a", server)
        server.answer = lambda text, number: "2" if text == POISON else number_of(text)
        second = annotated(tmp_path / "b", server)
    assert first.fingerprint == second.fingerprint and first.identity != second.identity


@pytest.mark.parametrize("concurrency", [1, 5])
def test_requests_run_at_the_same_time(tmp_path: Path, concurrency: int) -> None:
    """The server answers no request before as many have arrived as may be under way. A client that sends fewer breaks
    the barrier, and its documents fail.
    """
    barrier = threading.Barrier(concurrency)

    def answer(text: str, number: int) -> str | Fault:
        try:
            barrier.wait(60)
        except threading.BrokenBarrierError:
            return Fault(400)
        return number_of(text)

    with chat_server(answer) as server:
        annotated(tmp_path, server, bits=0, concurrency=concurrency)
    assert server.counts() == dict.fromkeys(TEXTS, 1) and server.most_at_once == concurrency


def test_documents_that_stay_open_are_not_counted_as_records(tmp_path: Path) -> None:
    """The second task has found the answers of the first one, and asks about as many documents more."""
    with chat_server(number_of) as server:
        for budget in (12, 20):
            config = ModelServerConfig(server.url, "m", PROMPT, number=(0, 5), max_requests=budget)
            parameters = {"annotators": {"quality": config.content()}, "max_quarantined": 0}
            operations = {"paths": {"quality": config.operations()}, "answers": "../.answers"}
            directory = str(tmp_path / "step")
            step = Step("annotate", "s", directory, "0" * 32, parameters, (written(tmp_path, 0),), operations)
            phase = next(stage.plan(step))
            result = run_task_inline(phase.tasks[0], phase, directory)
            assert (result.records, result.open) == (budget, len(TEXTS) - budget)
    assert len(server.requests) == 20


def test_missing_key_is_named_and_never_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chat_server(number_of) as server:
        monkeypatch.delenv("SHELF_API_KEY", raising=False)
        with pytest.raises(ModelServerError, match=r"SHELF_API_KEY, which holds the key of 127\.0\.0\.1"):
            annotated(tmp_path, server, key_env="SHELF_API_KEY")
        for value in ("two words", "line\nbreak", "schlüssel"):
            monkeypatch.setenv("SHELF_API_KEY", value)
            with pytest.raises(ModelServerError, match="is not a key") as caught:
                annotated(tmp_path, server, key_env="SHELF_API_KEY")
            assert value not in str(caught.value)
        assert server.requests == []


def test_two_servers(tmp_path: Path) -> None:
    """A document that the first one cannot judge is not sent to the second one."""
    source = written(tmp_path, 1)
    with chat_server(except_poison("no")) as one, chat_server(number_of) as other:
        configs = {"a": ModelServerConfig(one.url, "m", PROMPT, number=(0, 5)),
                   "b": ModelServerConfig(other.url, "m", PROMPT, labels=tuple("012345"))}  # fmt: skip
        parameters = {"annotators": {name: config.content() for name, config in configs.items()}, "max_quarantined": 1}
        operations = {"paths": {name: config.operations() for name, config in configs.items()}, "answers": "../x"}
        step = Step("annotate", "s", str(tmp_path / "step"), "0" * 32, parameters, (source,), operations)
        output, results = run_plan_inline(stage.plan(step), step.directory)
    manifest = finish_inline(step, output, results)
    assert POISON not in other.counts() and len(other.requests) == len(TEXTS) - 1
    assert manifest.counters["annotate/b/0"] == sum(number_of(text) == "0" for text in TEXTS)


def test_errors_are_those_of_datakit() -> None:
    assert issubclass(ModelServerError, DatakitError) and ModelServerError.exit_code == 2
