"""The limits on disk use hold on the nodes of a cluster, and the driver sees what running attempts have written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datakit.engine.disk_limits import DiskLimits
from datakit.engine.executor import Attempt, Cause
from datakit.engine.ray_backend import disk_reports
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.errors import ExpansionError, NoSpaceError
from tests.support.engine.attempts import run_all
from tests.support.engine.disk_tasks import task
from tests.support.engine.runs import wait_until

LIMITS = DiskLimits(max_expansion=10, expansion_floor_bytes=1 << 20)


def write_attempt(directory: Path, limits: DiskLimits = LIMITS, **arguments: Any) -> Attempt:
    """An attempt at a task that writes."""
    return Attempt(task("only", **arguments), "write", str(directory), 1, 1, 1 << 30, limits=limits)


def test_bomb_on_a_node_is_refused_by_name(executor: RayExecutor, tmp_path: Path) -> None:
    (outcome,) = run_all(executor, [write_attempt(tmp_path, file="bomb.parquet")])
    assert (outcome.cause, outcome.error_type) == (Cause.REFUSED, ExpansionError.__name__)
    assert outcome.message.startswith("bomb.parquet: ") and outcome.written > 1 << 20


def test_nodes_check_their_own_disks(executor: RayExecutor, tmp_path: Path) -> None:
    limits = replace(LIMITS, min_free_bytes=1 << 60)
    (outcome,) = run_all(executor, [write_attempt(tmp_path, limits, bytes=10)])
    assert (outcome.cause, outcome.error_type) == (Cause.ERROR, NoSpaceError.__name__)
    assert "limits.min_free_bytes" in outcome.message


def test_driver_sees_what_running_attempts_have_written(executor: RayExecutor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    executor.submit(write_attempt(tmp_path, bytes=1 << 20, gate=str(gate)))
    wait_until(lambda: executor.written(str(tmp_path)) >= 1 << 20)
    gate.touch()
    wait_until(lambda: bool(executor.wait(1.0)))
    wait_until(lambda: executor.written(str(tmp_path)) == 0)


def test_steps_that_run_together_have_totals_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"a-1": b"5 one", "a-2": b"6 two", "b-1": b"700 one"}
    asked: list[str] = []

    def get(key: str, namespace: bytes) -> bytes | None:
        asked.append(key)
        return stored.get(key)

    monkeypatch.setattr(disk_reports.internal_kv, "_internal_kv_get", get)
    monkeypatch.setattr(disk_reports, "REPORT_SECONDS", 1e9)
    reports = disk_reports.DiskReports()
    keys = [*stored, "b-2"]
    for _ in range(2):
        for own, total in ((keys[:2], 11), (keys[2:], 700)):
            reports.refresh(keys)
            assert reports.total(own) == total
    assert [reports.node(key) for key in keys] == ["one", "two", "one", None]
    assert asked == keys, "each report is read once in REPORT_SECONDS, whatever the number of steps"
