"""The progress display shows the state of each step."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from datakit.engine.observe.progress import LineView, StepViews, TableView, _cells
from datakit.errors import StepFailedError
from tests.support.engine import engine_tasks
from tests.support.engine.runs import run_numbers


def test_view_counts_the_tasks_and_records_of_a_step(tmp_path: Path) -> None:
    views = StepViews()
    run_numbers(tmp_path / "step", 3, observer=views)
    (view,) = views.views.values()
    assert (view.state(), view.total, view.done, view.failed, view.left()) == ("done", 3, 3, 0, None)
    assert len(_cells(view)) == 12


def test_finished_step_is_shown_as_reused(tmp_path: Path) -> None:
    run_numbers(tmp_path / "step", 1)
    views = StepViews()
    run_numbers(tmp_path / "step", 1, observer=views)
    assert [view.state() for view in views.views.values()] == ["reused"]


def test_lines_name_the_step_when_it_starts_and_ends(tmp_path: Path) -> None:
    stream = io.StringIO()
    with LineView(stream) as view:
        run_numbers(tmp_path / "step", 1, observer=view)
    first, last = stream.getvalue().splitlines()
    assert first.endswith(": running") and ": done in " in last and "2 rows" in last


def test_failed_step_is_shown_with_its_error(tmp_path: Path) -> None:
    stream, step = io.StringIO(), engine_tasks.number_step(str(tmp_path))
    with LineView(stream) as view:
        view.step_started(step)
        view.step_failed(step, StepFailedError("all tasks failed"))
    assert stream.getvalue().splitlines()[-1].endswith(": StepFailedError")
    assert [shown.state() for shown in view.views.values()] == ["failed"]


def test_table_has_a_row_per_step(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    table = TableView()
    run_numbers(tmp_path / "step", 1, observer=table)
    drawn = table._table()
    assert (drawn.row_count, len(drawn.columns)) == (1, 12)
