"""The report about a training run shows its curves with a bounded number of points, even before the run is finished."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import Browser

from datakit.report import write_report
from datakit.report.subject import subject_of
from datakit.report.training import POINTS, TABLE_ROWS, training_sections
from tests.support.report.browser import open_page

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


def test_page_of_an_unfinished_run_shows_its_last_loss(browser: Browser, tmp_path: Path) -> None:
    opened = open_page(browser, "file://" + write_report(str(training_run(tmp_path)), str(tmp_path)))
    assert "is not finished" in opened.page.inner_text("header")
    assert opened.page.eval_on_selector(".facts dd", "one => Number(one.dataset.value)") == 5 - 3 * 999 / 1000
    assert opened.messages == []
    assert [one for one in opened.violations() if one["impact"] in ("serious", "critical")] == []


def test_run_without_a_row_has_a_report(browser: Browser, tmp_path: Path) -> None:
    opened = open_page(browser, "file://" + write_report(str(training_run(tmp_path, 0)), str(tmp_path)))
    assert "no step yet" in opened.page.inner_text("main")
