"""On a phone, tables show the state or the cause first, and can be scrolled with the keyboard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.report.browser import PATIENCE, OpenPage, Scheme, browser
from tests.support.serve.pages import opened
from tests.support.serve.process import serving
from tests.support.small_shelf import step

__all__ = ["browser"]  # a fixture
NAME = "a-corpus-with-a-rather-long-name"
RUN = "20260101T000000000Z-12345-0a1b2c"
TRAINING = "train-0123456789ab"
NAMES = ("run_started", "step_started", "phase_started", "attempt_ended", "step_failed", "run_ended")
FACTS = {"stage": "consolidate", "dataset": NAME, "phase": "merge", "task": "part-00017", "cause": "out of memory",
         "verdict": "retry", "message": "killed", "peak_memory": 10**9, "budget": 10**9, "exit_code": 4}  # fmt: skip
CUT = """all => all.flatMap(table => {
    const headings = [...table.rows[0].cells].map(cell => cell.textContent);
    const place = headings.findIndex(text => ['state', 'cause', 'share kept'].includes(text));
    const edge = table.closest('.scroll').getBoundingClientRect().right;
    const cells = place < 0 ? [] : [...table.rows].filter(row => row.cells.length === headings.length);
    return cells.map(row => row.cells[place].getBoundingClientRect().right - edge);
})"""
SCROLLED = """all => all.filter(one => one.checkVisibility()).map(one =>
    [one.tabIndex, one.getAttribute('role'), one.getAttribute('aria-label').startsWith('Table: ')])"""


def add_long_names(root: Path) -> None:
    """Add a failed run and a training run whose names are long."""
    home = root / NAME
    (home / "runs" / RUN).mkdir(parents=True)
    lines = [json.dumps({"event": name, "time": 1000.0, **FACTS}) for name in NAMES]
    (home / "runs" / RUN / "events.jsonl").write_text("\n".join(lines) + "\n")
    (home / TRAINING).mkdir()
    (home / TRAINING / "metrics.jsonl").write_text('{"global_step": 7}\n')


def assert_usable(shown: OpenPage, tables: set[str]) -> None:
    """Require that the tables are there, that none cuts its main column, and that all are reached with the keyboard."""
    page = shown.page
    assert tables <= set(page.locator("table").evaluate_all("all => all.map(one => one.id.slice(6))"))
    edges = page.locator("table").evaluate_all(CUT)
    assert edges and max(edges) <= 0
    assert {tuple(one) for one in page.locator(".scroll").evaluate_all(SCROLLED)} == {(0, "region", True)}
    assert shown.overflow() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_state_is_not_cut_on_a_phone(browser: Browser, finished_copy: Path, tmp_path: Path, scheme: Scheme) -> None:
    add_long_names(finished_copy / "root")
    paths = {"/": {"runs", "trainings"}, "/datasets/shelf": {"steps", "runs"},
             f"/runs/{NAME}/{RUN}": {"steps", "failures"},
             f"/runs/shelf/{step(finished_copy, 'root/shelf/runs/*').name}": {"steps"}}  # fmt: skip
    with serving(finished_copy / "root") as server:
        for number, (path, tables) in enumerate(paths.items()):
            shown = opened(browser, server, path, scheme, width=390)
            shown.page.screenshot(path=tmp_path / f"{scheme}-{number}.png", full_page=True)
            assert_usable(shown, tables)


def test_table_is_scrolled_with_the_keyboard(browser: Browser, finished_copy: Path) -> None:
    add_long_names(finished_copy / "root")
    with serving(finished_copy / "root") as server:
        page = opened(browser, server, "/", width=390).page
        table = page.get_by_role("region", name="Table: runs", exact=True)
        page.focus("text=Apply")
        page.keyboard.press("Tab")
        expect(table).to_be_focused()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("one => one.scrollLeft > 0", arg=table.element_handle(), timeout=PATIENCE)
