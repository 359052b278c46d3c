"""Missing, repeated and contradictory rows of metrics are found, at any interval of logging."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datakit.storage.manifest import Manifest, Quarantine, Totals
from datakit.validate.finding import Result
from datakit.validate.subject import Subject
from datakit.validate.training import metrics

EVERY = metrics.EVERY


def differences(tmp_path: Path, rows: list[dict[str, Any]], end: str = "") -> list[str]:
    """Check the metrics of an unfinished run."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + end)
    run = Manifest("train", "plays", "", "", {}, [], [], [], Totals(0, 0), {}, Quarantine(0))
    result = Result("metrics")
    metrics.check(Subject(str(tmp_path), run, ()), result)
    return [found.difference for found in result.findings]


def row(step: int, every: int = 1, values: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"global_step": step, EVERY: every, "train/loss": 1.0 / step} | (values or {})


def test_rows_in_order_have_no_finding(tmp_path: Path) -> None:
    assert differences(tmp_path, [row(step) for step in range(1, 9)]) == []


def test_repeated_row_may_add_metrics_but_not_change_them(tmp_path: Path) -> None:
    assert differences(tmp_path, [row(1), row(2), row(2, values={"eval/loss": 1.0})]) == []
    (found,) = differences(tmp_path, [row(1), row(2), row(2, values={"train/loss": 9.0})])
    assert "differ in train/loss" in found


@pytest.mark.parametrize("every", [2, 5])
def test_rows_logged_at_intervals_have_no_gap(tmp_path: Path, every: int) -> None:
    rows = [row(step, every) for step in range(every, 40, every)]
    rare = row(11, every, {"alarm/adam": 2.0})
    assert differences(tmp_path, sorted([*rows, rare], key=lambda one: one["global_step"])) == []
    (found,) = differences(tmp_path, [one for one in rows if one["global_step"] != 20])
    assert "lacks the row of step 20" in found


def test_interval_may_change_when_a_run_resumes(tmp_path: Path) -> None:
    assert differences(tmp_path, [row(1), row(2), row(4, 2), row(6, 2), row(10, 5), row(15, 5)]) == []


def test_rows_of_earlier_versions_state_no_interval(tmp_path: Path) -> None:
    rows = [{"global_step": step} for step in (10, 20, 40, 45)]
    (found,) = differences(tmp_path, rows)
    assert "lacks the row of step 30" in found


def test_unfinished_last_line_is_no_finding(tmp_path: Path) -> None:
    assert differences(tmp_path, [row(1), row(2)], '{"global_st') == []
