"""Filters apply by their button, keep the focus, and can be used with the keyboard only."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.support.report.browser import PATIENCE, browser
from tests.support.serve.pages import LIVE, opened
from tests.support.serve.process import serving
from tests.support.small_shelf import step

__all__ = ["browser"]  # a fixture


def focused(page: Page) -> str:
    """Return the name of the select, or the text of the button, that has the focus."""
    return page.evaluate("(one => one.name || one.textContent)(document.activeElement)")


def test_filters_are_chosen_and_applied_with_the_keyboard(browser: Browser, finished: Path) -> None:
    run = step(finished, "root/shelf/runs/*").name
    with serving(finished / "root") as server:
        shown = opened(browser, server, f"/runs/shelf/{run}")
        page = shown.page
        page.evaluate("document.body.dataset.mark = 'the same document'")
        page.focus("#content")
        while focused(page) != "stage":
            page.keyboard.press("Tab")
        choices = page.locator("select[name=stage] option").evaluate_all("all => all.map(one => one.value)")
        for choice in choices[1:]:
            page.keyboard.press("ArrowDown")
            assert focused(page) == "stage" and page.input_value("select[name=stage]") == choice
        assert len(choices) > 4 and page.url.endswith(run), "nothing is applied while the options are passed"
        while focused(page) != "Apply":
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**?stage={choices[-1]}")
        expect(page.locator("#table-steps tbody th")).to_have_text([choices[-1]], timeout=PATIENCE)
        expect(page.locator(LIVE)).to_be_attached(timeout=PATIENCE)
        assert focused(page) == "Apply" and page.evaluate("document.body.dataset.mark") == "the same document"
        page.go_back()
        expect(page.locator("#table-steps tbody th")).not_to_have_count(1, timeout=PATIENCE)
        assert page.input_value("select[name=stage]") == "" and shown.messages == []


def started(stage: str) -> dict[str, object]:
    """An event that marks the beginning of a step."""
    return {"event": "step_started", "time": 1000.0, "stage": stage}


def test_choice_stays_when_the_page_is_updated(browser: Browser, tmp_path: Path) -> None:
    log = tmp_path / "shelf" / "runs" / "20260101T000000000Z-1-abcdef" / "events.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("".join(json.dumps(started(stage)) + "\n" for stage in ("normalize", "tokenize")))
    with serving(tmp_path) as server:
        page = opened(browser, server, f"/runs/shelf/{log.parent.name}").page
        page.select_option("select[name=stage]", "tokenize")
        page.focus("text=Apply")
        with log.open("a") as file:
            file.write(json.dumps(started("dedup")) + "\n")
        expect(page.locator("select[name=stage] option")).to_have_count(4, timeout=PATIENCE)
        assert page.input_value("select[name=stage]") == "tokenize" and focused(page) == "Apply"
