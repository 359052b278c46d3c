"""The progress display shows the state of each step."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from datakit.engine.executor import Cause, Outcome, Verdict
from datakit.engine.observe.progress import LineView, TableView, progress_line, shown_views, table_lines
from datakit.engine.observe.step_views import StepView, StepViews
from datakit.engine.task import Phase, Task
from datakit.errors import StepFailedError
from datakit.text.compilation import NOTICE
from tests.support.engine import engine_tasks
from tests.support.engine.runs import run_numbers


def test_view_counts_the_tasks_and_records_of_a_step(tmp_path: Path) -> None:
    views = StepViews()
    run_numbers(tmp_path / "step", 3, observer=views)
    (view,) = views.views.values()
    assert (view.state(), view.total, view.done, view.failed, view.left()) == ("done", 3, 3, 0, None)
    assert table_lines([view], 120)[1].split()[:4] == ["numbers", "test", "done", "3/3"]


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
    assert stream.getvalue().splitlines()[-1].endswith(": failed after 0.0 s")
    assert [shown.state() for shown in view.views.values()] == ["failed"]


def test_table_has_a_row_per_step(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    table = TableView()
    run_numbers(tmp_path / "step", 1, observer=table)
    assert len(table._table().plain.splitlines()) == 2


def test_table_without_steps_prints_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    with TableView():
        pass
    assert capsys.readouterr().err == ""


def wide_views() -> list[StepView]:
    """A step of each kind, with large numbers in every column."""
    views = [
        StepView(f"signatures a-source-with-quite-a-long-name-{i}", "attributes", 100_000, 99_999) for i in range(4)
    ]
    for view in views:
        view.failed, view.running, view.quarantined, view.records = 1234, 128, 4321, 10**9
        view.bytes_total, view.bytes_done, view.peak_memory, view.budget = 10**14, 10**12, 10**10, 10**11
        view.started, view.phase_started = view.started - 100_000, view.phase_started - 100_000
    views[1].ended, views[2].reused, views[3].error = views[1].started + 5, True, "failed"
    return views


def test_running_steps_are_shown_before_those_that_have_ended() -> None:
    views = [StepView(f"step {number}", ended=None if number in (1, 4) else 10.0 + number) for number in range(6)]
    assert [view.name for view in shown_views(views, 3)] == ["step 1", "step 4", "step 5"]
    assert [view.name for view in shown_views(views, 1)] == ["step 4"]
    assert shown_views(views, 9) == views


def test_events_of_two_steps_are_counted_separately(tmp_path: Path) -> None:
    stream, steps = io.StringIO(), [engine_tasks.number_step(str(tmp_path / name)) for name in "ab"]
    with LineView(stream) as views:
        for step in steps:
            views.step_started(step)
            views.phase_started(step, Phase("join", (Task("t", "m:f", {}, 7), Task("u", "m:f", {}, 7))), 0, 3)
        views.attempt_ended(Outcome("join", "t", 1, Cause.DONE, step_directory=steps[0].directory), Verdict.DONE)
        views.attempt_ended(Outcome("join", "t", 1, Cause.CRASH, step_directory=steps[1].directory), Verdict.FAIL)
        views.tick()
    first, second = views.views.values()
    assert (first.done, first.failed, first.running, first.bytes_done) == (1, 0, 1, 7)
    assert (second.done, second.failed, second.running) == (0, 1, 1)
    assert views.running() == [first, second]


def test_line_fits_into_80_columns() -> None:
    for view in wide_views():
        view.written_ended = 34_000_000_000_000
        line = progress_line(view)
        assert len(line) <= 80 and "attributes 99999/100000 done" in line and "34,000.0 GB written" in line


def test_line_shows_what_the_first_task_writes() -> None:
    view = StepView("normalize bomb", "route", 1, running=1, started=time.monotonic() - 100)
    view.phase_started -= 100
    view.written_running = 34_000_000_000
    line = "normalize bomb: route 0/1 done, 1 running, 0 failed, 34.0 GB written, 340 MB/s"
    assert progress_line(view) in (line, line.replace("340", "339"))
    heading, row = table_lines([view], 80)
    assert "written" in heading and "34.0 GB" in row


def test_line_of_a_download_has_a_rate_and_a_time_before_the_first_file_is_complete() -> None:
    view = StepView("download web", "fetch", 2, running=2, copies=True, bytes_total=400_000_000_000)
    view.phase_started -= 100
    view.written_running = 5_000_000_000
    line = "download web: fetch 0/2 done, 0 failed, 5.0 GB written, 50 MB/s, about 7,900 s left"
    assert progress_line(view) == line.replace("0 failed, ", "") and len(line) > 80
    view.name = "download a-source-with-quite-a-long-name-indeed"
    assert progress_line(view) == "download a-source-with-quite-a-lon…: fetch 0/2 done, 50 MB/s, about 7,900 s left"
    assert len(progress_line(view)) == 80
    heading, row = table_lines([view], 100)
    assert "MB/s" in heading and "50.0" in row and "7,900 s" in row
    view.copies = False
    assert view.left() is None


def test_written_bytes_of_ended_and_running_attempts_add_up(tmp_path: Path) -> None:
    views, step = StepViews(), engine_tasks.number_step(str(tmp_path))
    views.step_started(step)
    (view,) = views.views.values()
    views.attempt_ended(Outcome("sum", "00001", 1, Cause.DONE, written=100, step_directory=str(tmp_path)), Verdict.DONE)
    views.attempt_ended(
        Outcome("sum", "00002", 1, Cause.CRASH, written=20, step_directory=str(tmp_path)), Verdict.RETRY
    )
    views.disk_written(step, 3)
    assert view.written() == 123
    views.step_failed(step, StepFailedError("stopped"))
    assert view.written() == 120


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_table_is_never_wider_than_the_terminal(width: int) -> None:
    lines = table_lines(wide_views(), width)
    assert len(lines) == 5
    assert max(map(len, lines)) <= width
    assert all(name in lines[0] for name in ("step", "state", "tasks", "failed", "time"))
    assert lines[1].startswith("signatures a") and "attributes" in lines[1] and "99999/100000" in lines[1]
    assert ("peak / budget" in lines[0]) == (width == 200)


def test_columns_without_values_are_left_out() -> None:
    heading, _ = table_lines([StepView("download a", ended=5.0, started=4.0)], 80)
    assert heading.split() == ["step", "state", "time"]


def test_compilation_is_announced_and_not_part_of_the_rate(tmp_path: Path) -> None:
    stream, step = io.StringIO(), engine_tasks.number_step(str(tmp_path))
    with LineView(stream) as view:
        view.step_started(step)
        (shown,) = view.views.values()
        shown.phase_started -= 50
        view.kernels_compiling(True)
        assert shown.state() == "compiling"
        view.kernels_compiling(False)
    assert stream.getvalue().splitlines()[-1].endswith(f": {NOTICE}")
    assert shown.state() == "running" and time.monotonic() - shown.phase_started < 40


def test_failed_attempts_are_named_without_their_message(tmp_path: Path) -> None:
    stream, step = io.StringIO(), engine_tasks.number_step(str(tmp_path))
    with LineView(stream) as view:
        view.step_started(step)
        view.attempt_ended(
            Outcome("sum", "00001", 2, Cause.ERROR, message="the whole story", step_directory=str(tmp_path)),
            Verdict.FAIL,
        )
    assert stream.getvalue().splitlines()[-1].endswith(": task 00001, attempt 2: error, fail")


def test_refused_attempt_says_so_once(tmp_path: Path) -> None:
    stream, step = io.StringIO(), engine_tasks.number_step(str(tmp_path))
    with LineView(stream) as view:
        view.step_started(step)
        view.attempt_ended(Outcome("sum", "00002", 1, Cause.REFUSED, step_directory=str(tmp_path)), Verdict.REFUSE)
    assert stream.getvalue().splitlines()[-1].endswith(": task 00002, attempt 1: refused")
