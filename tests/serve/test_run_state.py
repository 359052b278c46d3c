"""The state of a run comes from its events, whatever they contain, and stays bounded."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from datakit.engine.ledger.ledger import driver_name
from datakit.engine.observe.event_log import EventLog
from datakit.serve import run_state
from datakit.serve.followers import Follower, Followers
from datakit.serve.root import Entry, ServedRoot
from datakit.serve.run_lines import RunLines
from datakit.serve.run_page import run_page
from datakit.serve.run_state import RunState
from tests.support.engine.runs import run_numbers

STEP = {"stage": "dedup", "dataset": "shelf"}
HTML = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def event(name: str, **more: Any) -> dict[str, Any]:
    return {"event": name, "time": 1000.0, **more}


def attempt(**more: Any) -> dict[str, Any]:
    facts = {"phase": "join", "task": "1", "attempt": 1, "cause": "memory", "verdict": "retry", "message": "used 5 MB"}
    return event("attempt_ended", **STEP, **facts, seconds=2.0, peak_memory=5, budget=4, **more)


def write(folder: Path, run: str, *events: dict[str, Any] | bytes) -> Entry:
    directory = folder / "shelf" / "runs" / run
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "events.jsonl").open("ab") as file:
        file.writelines(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in events)
    return Entry("run", "shelf", run, str(directory))


def test_failed_attempts_and_memory_are_remembered() -> None:
    state = RunState()
    state.apply(event("phase_started", **STEP, phase="join", tasks=4, done=1, slots=2))
    state.apply(attempt())
    state.apply(attempt() | {"verdict": "done", "cause": "done", "peak_memory": 1})
    step = state.steps["dedup", "shelf"]
    assert step.phase is not None and (step.phase.done, step.phase.tasks, step.phase.retried) == (2, 4, 1)
    (failure,) = state.failures
    assert (failure.cause, failure.verdict, failure.message) == ("memory", "retry", "used 5 MB")
    assert state.causes == {("dedup", "memory"): 1} and state.slots == 2
    assert (state.memory["dedup"].peak, state.memory["dedup"].budget) == (5, 4)


def test_state_equals_the_run_that_wrote_the_log(tmp_path: Path) -> None:
    run = driver_name()
    directory = tmp_path / "shelf" / "runs" / run
    run_numbers(tmp_path / "shelf" / "dedup-0123456789ab", 3, observer=EventLog(str(directory)))
    follower = Follower(ServedRoot(str(tmp_path)), Entry("run", "shelf", run, str(directory)))
    follower.look()
    (step,) = follower.state.steps.values()
    assert step.state == "done" and step.phase is not None and step.phase.done == step.phase.tasks
    assert follower.state.attempts >= 3 and follower.state.activity is not None and follower.state.slots > 0


@pytest.mark.parametrize("value", [None, True, -1, 1e400, "x" * 10_000, [], {}, 2**80], ids=str)
def test_wrong_types_count_as_missing(value: Any) -> None:
    state = RunState()
    names = ("run_started", "phase_started", "attempt_ended", "heartbeat", "step_ended", "step_failed", "note")
    fields = ("stage", "dataset", "phase", "tasks", "done", "slots", "seconds", "cause", "verdict", "message",
              "peak_memory", "budget", "rows", "error", "reason", "text", "failed", "attempt")  # fmt: skip
    for name in names:
        state.apply(event(name, **dict.fromkeys(fields, value)))
        state.apply(
            event(name, **STEP, phase="join", **dict.fromkeys(set(fields) - {"stage", "dataset", "phase"}, value))
        )
        state.apply(event(name))
    assert state.version == 3 * len(names)


def test_state_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_STEPS", "MOST_PHASES"):
        monkeypatch.setattr(run_state, name, 10)
    state = RunState()
    for number in range(2000):
        state.apply(event("note", text="x" * 100_000))
        state.apply(event("phase_started", stage="dedup", dataset=f"s{number}", phase="join", tasks=1, done=0))
        state.apply(event("phase_started", **STEP, phase=f"p{number}", tasks=1, done=0))
        state.apply(attempt() | {"cause": f"cause {number}"})
    assert len(state.steps) == 10 and len(state.causes) == 10 and len(state.failures) == run_state.MOST_FAILURES
    assert max(len(step.phases) for step in state.steps.values()) <= 10
    assert len(state.notes) == run_state.MOST_NOTES and len(state.notes[0]) <= run_state.MOST_TEXT + 1


def test_driver_without_a_process_counts_as_dead(tmp_path: Path) -> None:
    here, root = socket.gethostname(), ServedRoot(str(tmp_path))
    gone = write(tmp_path, "20260101T000000000Z-999999999-abcdef", event("run_started", host=here))
    ended = write(tmp_path, "20260101T000000000Z-1-abcdef", event("run_started"), event("run_ended", exit_code=3))
    away = write(tmp_path, "20260101T000000000Z-2-abcdef", event("run_started", host="elsewhere"))
    followers, lines = Followers(root), RunLines(root)
    states = {
        entry: (run_page(followers.of(entry), {}).state, lines.line(entry).state) for entry in (gone, ended, away)
    }
    assert states == {gone: ("dead", "dead"), ended: ("partial", "partial"), away: ("dead", "dead")}
    assert "finished work is kept" in run_page(followers.of(gone), {}).sentence


def test_living_driver_that_writes_nothing_is_silent(tmp_path: Path) -> None:
    run = driver_name().replace(f"-{os.getpid()}-", f"-{os.getppid()}-")
    entry = write(tmp_path, run, event("run_started", host=socket.gethostname(), heartbeat_seconds=30.0))
    assert run_page(Followers(ServedRoot(str(tmp_path))).of(entry), {}).state == "silent"


def test_filters_choose_steps_and_failures(tmp_path: Path) -> None:
    other = {"stage": "normalize", "dataset": "web"}
    entry = write(tmp_path, driver_name(), event("step_started", **STEP), attempt(), event("step_started", **other),
                  attempt() | other, event("step_ended", **other, rows=7, reused=False))  # fmt: skip
    follower = Followers(ServedRoot(str(tmp_path))).of(entry)
    page = run_page(follower, {"stage": "normalize"})
    assert [step.source for step in page.steps] == ["web"] and [one.source for one in page.failures] == ["web"]
    assert [step.source for step in run_page(follower, {"state": "running"}).steps] == ["shelf"]
    assert run_page(follower, {"source": HTML}).steps == () and len(run_page(follower, {}).steps) == 2


def test_damaged_log_is_shown_with_a_remark(tmp_path: Path) -> None:
    entry = write(tmp_path, driver_name(), event("step_started", **STEP), b'{"torn\n', b"[" * 100_000 + b"\n")
    page = run_page(Followers(ServedRoot(str(tmp_path))).of(entry), {})
    assert len(page.steps) == 1 and "2 lines of the log cannot be read" in page.problems[0]


def test_log_that_is_a_named_pipe_holds_nobody_up(tmp_path: Path) -> None:
    directory = tmp_path / "shelf" / "runs" / "r"
    directory.mkdir(parents=True)
    os.mkfifo(directory / "events.jsonl")
    entry, root = Entry("run", "shelf", "r", str(directory)), ServedRoot(str(tmp_path))
    assert "named pipe" in run_page(Followers(root).of(entry), {}).problems[0]
    assert RunLines(root).line(entry).state == "unreadable"
