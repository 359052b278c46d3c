"""A run's line in a list comes from the beginning and the end of its log."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from datakit.engine.ledger.ledger import driver_name
from datakit.serve import run_lines
from datakit.serve.root import Entry, ServedRoot
from datakit.serve.run_lines import RunLines

STEP = {"stage": "dedup", "dataset": "shelf"}


def write(folder: Path, run: str, *events: dict[str, Any]) -> Entry:
    directory = folder / "shelf" / "runs" / run
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "events.jsonl").open("a") as file:
        file.writelines(json.dumps({"time": 1000.0, **event}) + "\n" for event in events)
    return Entry("run", "shelf", run, str(directory))


def test_line_of_an_active_run_says_what_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lines, "TAIL_BYTES", 1000)
    monkeypatch.setattr(run_lines, "HEAD_BYTES", 200)
    run = driver_name().replace(f"-{os.getpid()}-", f"-{os.getppid()}-")
    notes = [{"event": "note", "text": "x" * 100}] * 50
    phase = {"event": "phase_started", **STEP, "phase": "join", "tasks": 3, "done": 0, "time": 1060.0}
    entry = write(tmp_path, run, {"event": "run_started", "host": socket.gethostname()}, *notes, phase)
    line = RunLines(ServedRoot(str(tmp_path))).line(entry)
    assert (line.state, line.doing, line.began, line.seconds) == ("running", "dedup shelf, join", 1000.0, 60.0)


def test_line_changes_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lines, "MOST_KEPT", 1)
    lines, run = RunLines(ServedRoot(str(tmp_path))), "20260101T000000000Z-999999999-abcdef"
    entry = write(tmp_path, run, {"event": "run_started", "host": socket.gethostname()})
    other = write(tmp_path, run.replace("a", "b"), {"event": "run_started"}, {"event": "run_ended", "exit_code": 0})
    assert [lines.line(one).state for one in (entry, other, entry)] == ["dead", "done", "dead"]
    write(tmp_path, run, {"event": "run_ended", "exit_code": 3})
    line = lines.line(entry)
    assert (line.state, line.exit_code) == ("partial", 3)
    write(tmp_path, run, {"event": "run_ended", "exit_code": 1})
    assert lines.line(entry).state == "failed"


def test_empty_or_missing_log_is_shown(tmp_path: Path) -> None:
    lines = RunLines(ServedRoot(str(tmp_path)))
    empty = write(tmp_path, "20260101T000000000Z-999999999-abcdef")
    missing = Entry("run", "shelf", "none", str(tmp_path / "shelf" / "runs" / "none"))
    assert [lines.line(one).state for one in (empty, missing)] == ["dead", "unreadable"]
