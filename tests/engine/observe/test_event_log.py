"""The event log has one JSON object per event, from the start of a run to its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datakit.engine.observe import event_log
from datakit.engine.observe.event_file import FILE_NAME
from datakit.engine.observe.event_log import EventLog
from datakit.engine.observe.observer import EVENTS, Observer, ObserverGroup, RunEnding, RunStart
from datakit.errors import InputError, StepFailedError
from datakit.storage import urls
from tests.support.engine import engine_tasks
from tests.support.engine.runs import run_numbers, wait_until
from tests.support.s3 import s3_root

PLACE = {"stage": "numbers", "dataset": "test"}


def read(directory: Path) -> list[dict[str, object]]:
    """Read the events of a run, oldest first."""
    return [json.loads(line) for line in (directory / FILE_NAME).read_text().splitlines()]


def started(log: EventLog) -> RunStart:
    """Return the start of a test's run."""
    return RunStart("run-1", log.url, "test", "root", "test.toml", {"name": "test"}, {}, {"workers": 2})


def test_events_of_a_step_are_written_in_order(tmp_path: Path) -> None:
    run_numbers(tmp_path / "step", 3, observer=EventLog(str(tmp_path / "run-1")))
    events = read(tmp_path / "run-1")
    attempts = [event for event in events if event["event"] == "attempt_ended"]
    others = [event for event in events if event["event"] != "attempt_ended"]
    assert [event["event"] for event in others] == ["step_started", "phase_started", "phase_started", "step_ended"]
    assert len(attempts) == 6
    assert {event["cause"] for event in attempts} == {"done"}
    assert (others[1]["tasks"], others[1]["done"], others[-1]["reused"]) == (3, 0, False)
    assert {event["run"] for event in events} == {"run-1"}
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    assert all(PLACE.items() <= event.items() for event in events)


def test_first_event_describes_the_run(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path / "run-1"))
    log.run_started(started(log))
    log.run_ended(RunEnding(0, "done", "", 1.5))
    first, last = read(tmp_path / "run-1")
    assert first.items() >= {"event": "run_started", "dataset": "test", "recipe": "test.toml"}.items()
    assert first["definition"] == {"name": "test"} and first["options"] == {"workers": 2}
    versions = first["versions"]
    assert isinstance(versions, dict) and {"python", "datakit", "pyarrow"} <= versions.keys()
    assert (last["event"], last["exit_code"], last["reason"], last["error"]) == ("run_ended", 0, "done", "")


def test_failed_step_has_the_whole_reason(tmp_path: Path) -> None:
    with pytest.raises(StepFailedError) as failure:
        run_numbers(tmp_path / "step", 2, observer=EventLog(str(tmp_path / "run-1")), faults={0: "raise", 1: "raise"})
    failed = read(tmp_path / "run-1")[-1]
    assert (failed["event"], failed["error"], failed["exit_code"]) == ("step_failed", "StepFailedError", 1)
    assert failed["reason"] == str(failure.value)
    assert len(str(failed["reason"]).splitlines()) > 2
    assert "secret document" not in str(failed["reason"])


def test_secrets_are_in_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "canary-0123456789")
    log = EventLog(str(tmp_path / "run-1"))
    definition = {"sources": [{"url": "https://host/a.txt?X-Amz-Signature=0a1b2c3d"}], "canary-0123456789": 1}
    log.run_started(RunStart("run-1", log.url, "test", "canary-0123456789", definition=definition))
    log.step_failed(engine_tasks.number_step(str(tmp_path)), InputError("first line\nsecond: canary-0123456789"))
    log.run_ended(RunEnding(1, "Authorization: Bearer 0123456789abcdef0123", "", 1.5))
    written = (tmp_path / "run-1" / FILE_NAME).read_text()
    assert not any(secret in written for secret in ("canary-", "0a1b2c3d", "0123456789abcdef0123"))
    assert read(tmp_path / "run-1")[1]["reason"] == "first line\nsecond: [redacted]"


def test_heartbeats_follow_until_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "HEARTBEAT_SECONDS", 0.01)
    log = EventLog(str(tmp_path / "run-1"))
    log.run_started(started(log))
    run_numbers(tmp_path / "step", 3, observer=log)
    before = len(read(tmp_path / "run-1"))
    wait_until(lambda: len(read(tmp_path / "run-1")) > before + 3)
    log.run_ended(RunEnding(0, "done", "", 1.5))
    *_, beat, last = read(tmp_path / "run-1")
    assert beat.items() >= {"event": "heartbeat", "tasks": 3, "done": 3, "failed": 0, "phase": "second"}.items()
    assert last["event"] == "run_ended"
    assert not log._heartbeat._thread.is_alive()


def test_heartbeat_survives_a_failing_disk(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path / "run-1"))
    (tmp_path / "run-1").touch()  # a file where the directory should be
    log._beat()
    log._beat()
    (tmp_path / "run-1").unlink()
    log._beat()
    log._beat()
    assert [event.get("missed", 0) for event in read(tmp_path / "run-1")] == [2, 0]


def test_events_reach_a_store_at_the_start_and_at_heartbeats(tmp_path: Path) -> None:
    with s3_root() as root:
        log = EventLog(f"{root}/run-1")

        def names() -> list[str]:
            return [json.loads(line)["event"] for line in urls.read_bytes(log.url).splitlines()]

        log.run_started(started(log))
        assert names() == ["run_started"]
        log.note("not yet")
        assert names() == ["run_started"]
        log._beat()
        assert names() == ["run_started", "note", "heartbeat"]
        log.run_ended(RunEnding(0, "done", "", 1.5))
        assert names()[-1] == "run_ended"


def test_group_passes_every_event_to_all_observers() -> None:
    class Recorder(Observer):
        def __init__(self) -> None:
            self.seen: list[tuple[str, int]] = []
            for event in EVENTS:
                setattr(self, event, lambda *facts, event=event: self.seen.append((event, len(facts))))

    recorders = [Recorder(), Recorder()]
    group = ObserverGroup(recorders)
    for number, event in enumerate(EVENTS):
        getattr(group, event)(*range(number))
    assert recorders[0].seen == recorders[1].seen == [(event, number) for number, event in enumerate(EVENTS)]
    assert set(EVENTS) == {name for name in vars(Observer) if not name.startswith("_")}
