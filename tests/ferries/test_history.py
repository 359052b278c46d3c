"""The history survives damage, and the pass rate counts the last thirty runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from datakit.ferries.history import FILE_NAME, append, read_history, settle, summaries
from datakit.ferries.machine import this_machine
from datakit.ferries.record import Outcome, Record
from datakit.ferries.status import Started, is_dead
from tests.support.paths import REPOSITORY
from tests.support.s3 import s3_root

APPEND = """
import sys
from datakit.ferries.history import append
from datakit.ferries.status import Started
for number in range(40):
    append(sys.argv[1], Started("smoke", f"{sys.argv[2]}-{number}", "/nowhere", 0.0, False, 1.0, "", 1e12))
"""

SETTLE = """
import sys, time
from datakit.ferries import history
dead = history.is_dead
history.is_dead = lambda line: time.sleep(0.05) or dead(line)
history.settle(sys.argv[1])
"""


def record(nonce: str, outcome: Outcome = "passed", ferry: str = "smoke") -> Record:
    return Record(ferry, nonce, "smoke-0", 0.0, 1.0, outcome, "run", False, 1.0, this_machine(), "0.1")


def started(nonce: str, until: float) -> Started:
    return Started("smoke", nonce, "/nowhere/smoke-0", 0.0, False, 1.0, "another domain", until)


@pytest.mark.parametrize("store", [False, True])
def test_lines_are_read_as_they_were_written(tmp_path: Path, store: bool) -> None:
    def check(parent: str) -> None:
        assert read_history(parent).records == []
        for line in (started("a", 1e12), started("b", 1e12), record("a"), record("c", "failed")):
            append(parent, line)
        found = read_history(parent)
        assert found.records == [record("a"), record("c", "failed")]
        assert [line.nonce for line in found.open] == ["b"] and found.unreadable == 0

    if store:
        with s3_root() as parent:
            check(parent)
    else:
        check(str(tmp_path))


def test_damaged_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    append(str(tmp_path), record("a"))
    with open(tmp_path / FILE_NAME, "ab") as file:
        file.write(b'\xff\n[[[\n{"event": "newer", "x": 1}\n{"event": "ended", "ferry": "smo')
    append(str(tmp_path), record("b"))
    found = read_history(str(tmp_path))
    assert [one.nonce for one in found.records] == ["a", "b"] and found.unreadable == 4


def test_processes_append_at_the_same_time(tmp_path: Path) -> None:
    words = [sys.executable, "-c", APPEND, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    processes = [subprocess.Popen([*words, name], env=environment) for name in ("a", "b", "c")]
    assert [process.wait() for process in processes] == [0, 0, 0]
    found = read_history(str(tmp_path))
    assert len(found.open) == 120 and found.unreadable == 0


def test_ferry_out_of_sight_counts_as_killed_after_its_limit(tmp_path: Path) -> None:
    append(str(tmp_path), started("late", 1.0))
    append(str(tmp_path), started("running", 1e12))
    (killed,) = settle(str(tmp_path))
    assert (killed.nonce, killed.outcome, killed.root) == ("late", "killed", "smoke-0")
    assert settle(str(tmp_path)) == []


def test_ferry_that_ends_meanwhile_was_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(str(tmp_path), started("ending", 1.0))

    def ends_first(line: Started) -> bool:
        append(str(tmp_path), record(line.nonce))
        return is_dead(line)

    monkeypatch.setattr("datakit.ferries.history.is_dead", ends_first)
    assert settle(str(tmp_path)) == []
    assert [one.outcome for one in read_history(str(tmp_path)).records] == ["passed"]


def test_processes_that_settle_at_once_append_one_record(tmp_path: Path) -> None:
    for number in range(40):
        append(str(tmp_path), started(str(number), 1.0))
    words = [sys.executable, "-c", SETTLE, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    processes = [subprocess.Popen(words, env=environment) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    lines = (tmp_path / FILE_NAME).read_bytes().splitlines()
    assert len(lines) == 80, "each ferry has its line and one record"


def test_pass_rate_is_that_of_the_last_thirty_runs() -> None:
    records = [record(str(number), "failed") for number in range(10)]
    records += [record(str(number)) for number in range(10, 36)] + [record("x", "killed"), record("y", "no baseline")]
    smoke, canary = summaries([*records, record("z", ferry="train-canary")])
    assert str(smoke) == "26 of the last 30 runs passed, 1 had no baseline" and smoke.newest.nonce == "y"
    assert str(canary) == "1 of the last 1 runs passed"
