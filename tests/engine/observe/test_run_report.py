"""The events of a run end with the exit code and the reason, however the run ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import datakit
from datakit.engine.observe import run_report
from datakit.engine.observe.event_log import EventLog
from datakit.engine.observe.observer import Observer, RunStart
from datakit.engine.observe.run_report import RunReport
from datakit.errors import NoInputError
from tests.support.engine.runs import wait_until
from tests.support.paths import REPOSITORY
from tests.support.small_shelf import write_lines, write_pages

BUG = """
import datakit.engine.scheduler.finish as finish
def broken(*arguments):
    raise ValueError("the text of a secret document")
finish.write_manifest = broken
"""
COLUMNS = '[[sources]]\nname = "bad"\nurl = "bad"\n'


def events(folder: Path) -> list[dict[str, Any]]:
    """Read the events of the newest run in `<folder>/root`."""
    log = max(folder.glob("root/*/runs/*/events.jsonl"))
    return [json.loads(line) for line in log.read_text().splitlines()]


def start(recipe: Path, folder: Path) -> subprocess.Popen[str]:
    """Start a run of a recipe, whose modules are in the folder, in a process of its own."""
    path = f"{folder}{os.pathsep}{REPOSITORY}"
    return subprocess.Popen(
        [sys.executable, "-m", "datakit", "run", str(recipe), "--root", "root", "--workers", "2"],
        cwd=folder, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def checked_end(folder: Path, code: int, said: str) -> dict[str, Any]:
    """Check what all endings have in common, and return the last event."""
    first, *others = events(folder)
    last = others[-1]
    assert (first["event"], last["event"]) == ("run_started", "run_ended")
    assert [event["event"] for event in others].count("run_ended") == 1
    assert {event["run"] for event in (first, *others)} == {first["run"]}
    assert last["exit_code"] == code
    assert sum(line.startswith(f"run {first['run']}") for line in said.splitlines()) >= 1
    assert "secret document" not in json.dumps(last)
    return last


def broken_recipe(folder: Path) -> Path:
    """Write a recipe with a source that has no text column."""
    write_lines(folder / "good" / "a.jsonl", ["a text of some words"])
    (folder / "bad").mkdir()
    (folder / "bad" / "a.jsonl").write_text('{"body": 1}\n')
    recipe = folder / "bad.toml"
    recipe.write_text(f'name = "bad"\n[[sources]]\nname = "good"\nurl = "good"\n{COLUMNS}')
    return recipe


def test_complete_run_ends_with_code_0(tmp_path: Path) -> None:
    write_lines(tmp_path / "good" / "a.jsonl", ["a text of some words"])
    (tmp_path / "r.toml").write_text('name = "r"\n[[sources]]\nname = "good"\nurl = "good"\n')
    result = datakit.run(tmp_path / "r.toml", tmp_path / "root")
    first, *_, last = events(tmp_path)
    assert result.run == first["run"] and f"run:       {result.run}" in repr(result)
    assert first["recipe"] == str(tmp_path / "r.toml") and first["definition"]["name"] == "r"
    assert (last["exit_code"], last["reason"], last["error"]) == (0, "done", "")
    again = datakit.run(tmp_path / "r.toml", tmp_path / "root")
    assert (again.run, again.log) == (None, None), "nothing ran"
    assert len(list(tmp_path.glob("root/r/runs/*"))) == 1


def test_refused_input_ends_with_code_2_and_the_whole_reason(tmp_path: Path) -> None:
    run = start(broken_recipe(tmp_path), tmp_path)
    _, said = run.communicate(timeout=120)
    last = checked_end(tmp_path, run.returncode, said)
    assert (run.returncode, f"error: {last['reason']}" in said) == (2, True), said
    failed = next(event for event in events(tmp_path) if event["event"] == "step_failed")
    assert (failed["stage"], failed["dataset"], failed["exit_code"]) == ("normalize", "bad", 2)
    assert "text" in failed["reason"]


def test_partial_run_ends_with_code_3_and_all_lines(tmp_path: Path) -> None:
    run = start(write_pages(tmp_path, "poisoned"), tmp_path)
    _, said = run.communicate(timeout=120)
    last = checked_end(tmp_path, run.returncode, said)
    assert (run.returncode, last["error"]) == (3, "PartialError")
    assert len(last["reason"].splitlines()) >= 4 and last["reason"] in said


def test_unexpected_exception_ends_with_code_1_without_its_message(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BUG)
    write_lines(tmp_path / "good" / "a.jsonl", ["a text of some words"])
    (tmp_path / "r.toml").write_text('name = "r"\n[[sources]]\nname = "good"\nurl = "good"\n')
    run = start(tmp_path / "r.toml", tmp_path)
    _, said = run.communicate(timeout=120)
    last = checked_end(tmp_path, run.returncode, said)
    assert (run.returncode, last["error"]) == (1, "ValueError")
    assert "sitecustomize.py:4 in broken" in last["reason"]


@pytest.mark.parametrize(
    ("number", "code", "reason"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_signal_ends_with_its_code(tmp_path: Path, number: signal.Signals, code: int, reason: str) -> None:
    run = start(write_pages(tmp_path, "slow"), tmp_path)
    wait_until(lambda: list(tmp_path.glob("root/sources/pages/normalize-*/ledger/*")) != [])
    run.send_signal(number)
    _, said = run.communicate(timeout=120)
    last = checked_end(tmp_path, run.returncode, said)
    assert (run.returncode, last["reason"]) == (code, reason)


def test_failure_before_the_first_step_is_in_the_events(tmp_path: Path) -> None:
    write_lines(tmp_path / "good" / "a.jsonl", ["a text of some words"])
    (tmp_path / "r.toml").write_text('name = "r"\n[[sources]]\nname = "good"\nurl = "good/*.jsonl"\n')
    (tmp_path / "good" / "a.jsonl").rename(tmp_path / "a.jsonl")
    with pytest.raises(NoInputError):
        datakit.run(tmp_path / "r.toml", tmp_path / "root")
    assert not (tmp_path / "root").exists(), "a root that a typing error names"
    (tmp_path / "root" / "r" / "tokenizers").mkdir(parents=True)
    with pytest.raises(NoInputError) as failure:
        datakit.run(tmp_path / "r.toml", tmp_path / "root")
    first, last = events(tmp_path)
    assert (last["event"], last["exit_code"], last["reason"]) == ("run_ended", 2, str(failure.value))
    assert failure.value.__notes__[0].startswith(f"run {first['run']}; events: ")


def test_long_run_begins_before_its_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_report, "HEARTBEAT_SECONDS", 0.01)
    log = EventLog(str(tmp_path / "run-1"))
    with RunReport(RunStart("run-1", log.url, "test", str(tmp_path)), Observer(), [log]) as report:
        wait_until(lambda: report.run is not None)
        report.begin()
    names = [json.loads(line)["event"] for line in (tmp_path / "run-1" / "events.jsonl").read_text().splitlines()]
    assert names == ["run_started", "run_ended"]
