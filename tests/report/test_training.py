"""The report about a training run shows its curves with a bounded number of points, even before the run is finished."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import Browser

from datakit.report import write_report
from datakit.report.page import page_of
from datakit.report.subject import subject_of
from datakit.report.training import POINTS, TABLE_ROWS, training_sections
from tests.support.report.browser import open_page
from tests.support.report.made_up_root import write_root, write_training_run

STEPS = 1000


def training_run(folder: Path, steps: int = STEPS) -> Path:
    """Write the metrics of an unfinished run whose loss falls from 5."""
    run = folder / "plays" / "train-0123456789ab"
    run.mkdir(parents=True)
    rows = [{"global_step": number + 1, "train/cross_entropy_loss": 5 - 3 * number / steps,
             "throughput/tokens_per_second": 1000.0, "optim/learning_rate/adam": 1e-3,
             "eval/web/bpb": 1.5 if number % 100 == 99 else None}
            for number in range(steps)]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_curves_have_a_bounded_number_of_points(tmp_path: Path) -> None:
    (section,) = training_sections(subject_of(str(training_run(tmp_path))))
    figures = {figure.id: figure for figure in section.figures}
    assert figures.keys() == {"training-loss", "training-bits", "training-speed", "training-rates"}
    loss = figures["training-loss"]
    assert loss.chart is not None
    points = loss.chart.data["series"][0]["points"]
    assert POINTS / 2 < len(points) <= POINTS and points[-1][0] == STEPS
    assert len(loss.table.rows) == TABLE_ROWS
    bits = figures["training-bits"].table.rows
    assert [row[0] for row in bits] == [100 * number for number in range(1, 11)]


def test_training_time_is_apart_from_that_of_the_data(tmp_path: Path) -> None:
    data = write_root(tmp_path / "data", ["web"], 2, "first")
    run = write_training_run(tmp_path / "runs", [data])
    rows = [{"global_step": step, "throughput/duration": 2.0, "throughput/loading_time": 0.5,
             "throughput/hook_time": 10.0 if step == 3 else None} for step in (1, 2, 3)]  # fmt: skip
    for kept, seconds, remark in ((rows, 17.5, "in steps, saves and evaluations"),
                                  (rows[2:], 17.5, "in steps, saves and evaluations; estimated")):  # fmt: skip
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
        shown = {fact.label: fact for fact in page_of(subject_of(str(run)), show_text=False).facts}
        assert (shown["training time"].value, shown["training time"].remark) == (seconds, remark)
        assert "time" not in shown and "time of the data steps" in shown


def test_equal_curves_share_a_line(tmp_path: Path) -> None:
    run = training_run(tmp_path, 3)
    rows = [json.loads(line) | {"optim/learning_rate/router": 1e-3} for line in (run / "metrics.jsonl").open()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (section,) = training_sections(subject_of(str(run)))
    (rates,) = [figure for figure in section.figures if figure.id == "training-rates"]
    assert [column.heading for column in rates.table.columns] == ["step", "adam = router"]


def test_page_of_an_unfinished_run_shows_its_last_loss(browser: Browser, tmp_path: Path) -> None:
    opened = open_page(browser, "file://" + write_report(str(training_run(tmp_path)), str(tmp_path)))
    assert "is not finished" in opened.page.inner_text("header")
    assert opened.page.eval_on_selector(".facts dd", "one => Number(one.dataset.value)") == 5 - 3 * 999 / 1000
    assert opened.messages == []
    assert [one for one in opened.violations() if one["impact"] in ("serious", "critical")] == []


def test_finished_run_names_all_caches_and_sources(browser: Browser, tmp_path: Path) -> None:
    """A source of two datasets is listed once for each cache, because each cache holds other documents of it."""
    first = write_root(tmp_path / "one", ["web", "books"], 2, "first")
    second = write_root(tmp_path / "two", ["web"], 3, "second")
    run = write_training_run(tmp_path / "runs", [first, second])
    opened = open_page(browser, "file://" + write_report(str(run), str(tmp_path)))
    tokens = {row[0]: int(row[2]) for row in opened.table("tokens")[1:]}
    assert tokens == {"first/web": 7800, "first/books": 7800, "second/web": 11700, "all": 27300}
    assert {row[0] for row in opened.table("lineage-sources")[1:]} == {"web", "books"}
    assert opened.table("training-loss")[1:] == [["1", "4.0"], ["2", "3.0"]]
    assert opened.messages == []


def test_run_without_a_row_has_a_report(browser: Browser, tmp_path: Path) -> None:
    opened = open_page(browser, "file://" + write_report(str(training_run(tmp_path, 0)), str(tmp_path)))
    assert "no step yet" in opened.page.inner_text("main")
