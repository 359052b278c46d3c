"""The state of a run is read from its events while the run writes them, whatever is missing or was rotated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datakit.engine.observe.event_log import EventLog
from datakit.engine.observe.event_reader import RunEvents
from datakit.engine.observe.observer import ObserverGroup
from datakit.engine.observe.step_views import StepViews
from datakit.errors import PartialError, StepFailedError
from tests.support.engine import engine_tasks
from tests.support.engine.runs import run_numbers

FILE_NAME = "events.jsonl"
STEP = {"stage": "dedup", "dataset": "shelf"}


def write(path: Path, *events: dict[str, Any], mode: str = "a") -> None:
    with path.open(mode) as file:
        file.writelines(f"{json.dumps({'time': 1000.0, **event})}\n" for event in events)


def attempt(verdict: str) -> dict[str, Any]:
    return {"event": "attempt_ended", **STEP, "verdict": verdict, "peak_memory": 5, "budget": 10}


def test_events_show_what_the_run_itself_shows(tmp_path: Path) -> None:
    views = StepViews()
    run_numbers(tmp_path / "step", 3, observer=ObserverGroup([views, EventLog(str(tmp_path))]))
    events = RunEvents(str(tmp_path / FILE_NAME))
    assert events.read() and not events.read()
    (read,), (shown,) = events.views.values(), views.views.values()
    for name in ("name", "phase", "total", "done", "failed", "peak_memory", "budget", "reused", "error"):
        assert getattr(read, name) == getattr(shown, name), name
    assert read.state() == "done" and abs(read.seconds() - shown.seconds()) < 60


def test_reading_continues_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    events = RunEvents(str(path))
    assert not events.read(), "the file does not exist yet"
    write(path, {"event": "run_started"}, {"event": "step_started", **STEP})
    with path.open("a") as file:
        file.write('{"time": 1001.0, "event": "phase_sta')
    assert events.read()
    with path.open("a") as file:
        file.write(f'rted", {json.dumps({**STEP, "phase": "join", "tasks": 4, "done": 1})[1:]}\n')
    write(path, attempt("done"), attempt("retry"), attempt("fail"), {"event": "of a newer version"})
    assert events.read()
    (view,) = events.views.values()
    assert (view.phase, view.done, view.total, view.failed, view.state()) == ("join", 2, 4, 1, "running")
    write(path, {"event": "step_ended", **STEP, "reused": False, "time": 1060.0})
    assert events.read() and view.state() == "done" and round(view.seconds()) == 60


def test_rotated_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    first = {"event": "run_started", "number": 1}
    phase = {"event": "phase_started", **STEP, "phase": "join", "tasks": 9, "done": 0, "number": 2}
    write(path, first, phase, attempt("done") | {"number": 3})
    events = RunEvents(str(path))
    assert events.read()
    write(path, first, attempt("done") | {"number": 4}, mode="w")
    assert events.read() and not events.read()
    (view,) = events.views.values()
    assert view.done == 2
    longer = [attempt("done") | {"number": number, "message": "x" * number} for number in range(5, 9)]
    write(path, first, *longer, mode="w")
    while events.read() or view.done < 6:  # the next look finds the beginning
        assert view.done <= 6


def test_heartbeat_repeats_what_a_late_reader_missed(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    heartbeat = {**STEP, "phase": "join", "tasks": 9, "done": 7, "failed": 1}
    write(path, {"event": "run_started"}, {"event": "heartbeat", **STEP, "phase": ""})
    write(path, {"event": "heartbeat", **heartbeat}, attempt("done"))
    events = RunEvents(str(path))
    events.read()
    (view,) = events.views.values()
    assert (view.phase, view.done, view.total, view.failed) == ("join", 8, 9, 1)


def test_failed_steps_have_the_state_that_the_run_showed(tmp_path: Path) -> None:
    step = engine_tasks.number_step(str(tmp_path / "step"))
    for error in (PartialError("1 of 2 tasks failed"), StepFailedError("all tasks failed"), SystemExit(143)):
        views, log = StepViews(), EventLog(str(tmp_path / type(error).__name__))
        group = ObserverGroup([views, log])
        group.step_started(step)
        group.step_failed(step, error)
        events = RunEvents(log.url)
        events.read()
        assert [view.state() for view in events.views.values()] == [view.state() for view in views.views.values()]


def test_end_of_the_run_is_kept(tmp_path: Path) -> None:
    write(tmp_path / FILE_NAME, {"event": "run_started", "host": "a"}, {"event": "run_ended", "exit_code": 3})
    events = RunEvents(str(tmp_path / FILE_NAME))
    events.read()
    assert events.started is not None and events.started["host"] == "a"
    assert events.ended is not None and events.ended["exit_code"] == 3


NO_EVENTS = {
    "torn": b'{"torn', "list": b"[1, 2]", "deep": b"[" * 100_000, "bytes": b"\xff\x00", "nameless": b'{"event": 1}',
    "number": b"7", "empty": b"",
}  # fmt: skip


@pytest.mark.parametrize("line", NO_EVENTS.values(), ids=NO_EVENTS)
def test_line_that_is_no_event_hides_no_later_one(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / FILE_NAME
    phase = {"event": "phase_started", **STEP, "phase": "join", "tasks": 9, "done": 0}
    write(path, {"event": "run_started", "number": 1})
    with path.open("ab") as file:
        file.write(line + b"\n")
    write(path, phase | {"number": 2}, attempt("done") | {"number": 3})
    events = RunEvents(str(path))
    assert events.read() and not events.read()
    write(path, attempt("done") | {"number": 4})
    assert events.read()
    assert [view.done for view in events.views.values()] == [2]


def test_events_without_their_fields_show_less(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    write(path, {"event": "run_started"}, {"event": "attempt_ended"}, {"event": "step_ended", "stage": ["dedup"]})
    write(path, {"event": "phase_started", **STEP, "phase": "join", "tasks": 9, "done": 0})
    events = RunEvents(str(path))
    assert events.read()
    assert events.views["dedup shelf"].total == 9
