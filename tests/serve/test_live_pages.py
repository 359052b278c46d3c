"""Pages in a real browser follow a real run to its end, across a reload and a restart of the server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from datakit.storage.manifest import find_manifest
from tests.support.faults.cluster import wait_until
from tests.support.paths import REPOSITORY
from tests.support.report.browser import PATIENCE, OpenPage, Scheme, browser, open_page
from tests.support.serve.pages import LIVE, opened
from tests.support.serve.process import serving
from tests.support.small_shelf import TRANSFORM, step, write_pages

__all__ = ["browser"]  # a fixture
WAITING = TRANSFORM.replace("time.sleep(600)", "\n    while not os.path.exists('go'): time.sleep(0.05)\n")
HTML = "<script>alert(1)</script><img src=x onerror=alert(2)>"
TRAINING = "train-0123456789ab"


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Start a run that waits in its first task for the file `go`; provide the path of its page."""
    recipe = write_pages(folder, "slow")
    (folder / "transforms.py").write_text(WAITING.replace("'go'", repr(str(folder / "go"))))
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{folder}"}
    words = [
        sys.executable,
        "-m",
        "datakit",
        "run",
        str(recipe),
        "--root",
        "root",
        "--set",
        "normalize.max_quarantined=0",
    ]
    run = subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    logs = folder / "root" / "pages" / "runs"
    try:
        assert wait_until(lambda: any('"route"' in path.read_text() for path in logs.glob("*/events.jsonl")), 120)
        yield f"/runs/pages/{next(logs.iterdir()).name}"
        assert run.wait(120) == 0
    finally:
        run.kill()
        run.wait(60)


def expect_state(page: Page, state: str) -> None:
    expect(page.locator("header[data-state]")).to_have_attribute("data-state", state, timeout=PATIENCE)


def test_page_follows_a_run_through_reload_and_restart(browser: Browser, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with running(tmp_path) as path:
        with serving(root) as server:
            shown = opened(browser, server, path)
            page = shown.page
            expect_state(page, "running")
            expect(page.locator("#table-now")).to_contain_text("route", timeout=PATIENCE)
            assert re.fullmatch(r"last event .+ ago", page.inner_text("#age"))
            page.select_option("select[name=stage]", "normalize")
            page.click("text=Apply")
            page.wait_for_url("**?stage=normalize")
            page.reload()
            expect(page.locator(LIVE)).to_be_attached(timeout=PATIENCE)
            assert {row[0] for row in shown.table("steps")[1:]} == {"normalize"}
            page.goto(server.url + path)
            expect(page.locator(LIVE)).to_be_attached(timeout=PATIENCE)
            page.focus("#command")
            page.evaluate("document.body.dataset.mark = 'the same document'")
            assert "normalize.max_quarantined=0" in page.inner_text("#command")
            before = [row[3] for row in shown.table("stages")]
        expect(page.locator("#connection[data-live=no]")).to_be_attached(timeout=PATIENCE)
        (tmp_path / "go").touch()
        with serving(root, port=server.port) as server:
            expect_state(page, "done")
            expect(page.locator(LIVE)).to_be_attached(timeout=PATIENCE)
            assert page.evaluate("document.body.dataset.mark") == "the same document", "without a reload"
            assert page.evaluate("document.activeElement.id") == "command", "the focus stays"
            assert [row[3] for row in shown.table("stages")] != before
            assert_shown_rows_are_those_of_the_manifests(shown, root)
            unexpected = [text for text in shown.messages if "net::ERR" not in text]
            assert unexpected == [], "the browser itself reports each failed connection"
            page.click("text=Report about this run")
            page.wait_for_selector("html[data-drawn]", timeout=PATIENCE)


def assert_shown_rows_are_those_of_the_manifests(shown: OpenPage, root: Path) -> None:
    rows = {(row[0], row[2].strip()): row[-1] for row in shown.table("steps")[1:]}
    manifests = [find_manifest(str(path.parent)) for path in root.rglob("manifest.json")]
    expected = {(one.stage, one.dataset): str(one.totals.rows) for one in manifests if one is not None}
    assert rows == expected and len(rows) == 6


def test_page_without_javascript_shows_the_same_figures(browser: Browser, finished: Path) -> None:
    run = step(finished, "root/shelf/runs/*").name
    with serving(finished / "root") as server:
        live = opened(browser, server, f"/runs/shelf/{run}?stage=tokenize")
        context = browser.new_context(java_script_enabled=False)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.goto(f"{server.url}/runs/shelf/{run}?stage=tokenize")
        texts = page.locator("#table-steps td").all_inner_texts()
        assert texts == live.page.locator("#table-steps td").all_inner_texts() and "143" in texts
        page.select_option("select[name=stage]", "dedup")
        page.click("text=Apply")
        page.wait_for_url("**?stage=dedup*")
        assert page.locator("#table-steps tbody th").all_inner_texts() == ["dedup"]
        assert page.locator("noscript p").count() == 1


def hostile_root(folder: Path) -> Path:
    """A root whose log and metrics hold HTML and control characters in every text."""
    run = folder / "shelf" / "runs" / "20260101T000000000Z-1-abcdef"
    run.mkdir(parents=True)
    texts = (
        "stage",
        "dataset",
        "phase",
        "task",
        "cause",
        "verdict",
        "message",
        "text",
        "reason",
        "error",
        "recipe",
        "host",
    )
    facts = {name: f"{HTML}\u202e{name}" for name in texts}
    long = facts | {"message": "x" * 3000, "dataset": "y" * 3000}
    counts = {"tasks": 5, "done": 2, "rows": 7, "seconds": 1.0, "peak_memory": 5, "budget": 6, "exit_code": 1}
    start = {
        "options": {"workers": HTML, "directory": HTML, "settings": [HTML]},
        "root": HTML,
        "versions": {HTML: HTML},
    }
    names = ("run_started", "note", "step_started", "phase_started", "attempt_ended", "step_failed", "run_ended")
    with (run / "events.jsonl").open("w") as log:
        for values in (long, facts):
            for name in names:
                log.write(json.dumps({**start, **values, **counts, "time": 1000.0, "event": name}) + "\n")
    (folder / "shelf" / TRAINING).mkdir()
    rows = [{"global_step": step, "train/cross_entropy_loss": 3.0 - step / 100, HTML: 1.0} for step in range(50)]
    (folder / "shelf" / TRAINING / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_hostile_texts_are_shown_as_texts(browser: Browser, tmp_path: Path) -> None:
    root = hostile_root(tmp_path)
    with serving(root) as server:
        for path in (
            f"/runs/shelf/{next((root / 'shelf' / 'runs').iterdir()).name}",
            f"/trainings/shelf/{TRAINING}",
            "/",
        ):
            assert path == "/" or server.ask(f"{path}/report").status == 200
            shown = opened(browser, server, path, width=390)
            assert shown.messages == [] and shown.overflow() == 0, path
            assert shown.page.locator("#live script, #live img").count() == 0
            assert path == "/" or HTML in shown.page.inner_text("#live")
            assert "\u202e" not in shown.page.content()


def test_training_page_shows_the_newest_row(browser: Browser, tmp_path: Path) -> None:
    root = hostile_root(tmp_path)
    with serving(root) as server:
        shown = opened(browser, server, f"/trainings/shelf/{TRAINING}")
        loss = shown.page.locator("dt:text-is('training loss') + dd")
        expect(loss).to_have_attribute("data-value", str(3.0 - 49 / 100), timeout=PATIENCE)
        with (root / "shelf" / TRAINING / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"global_step": 50, "train/cross_entropy_loss": 1.25}) + "\n")
        expect(loss).to_have_attribute("data-value", "1.25", timeout=PATIENCE)
        assert shown.table("loss")[-1] == ["50", "1.25"] and shown.messages == []


def broken_words(page: Page) -> list[str]:
    """Return the names of phases that are shown on several lines. They are single words."""
    phases = "all => all.filter(one => one.getClientRects().length && one.clientHeight > 44).map(one => one.innerText)"
    return page.locator("#table-steps tbody tr:has(th:text-is('dedup')) td:nth-of-type(3)").evaluate_all(phases)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_and_fit(
    browser: Browser, finished: Path, tmp_path: Path, scheme: Scheme, width: int
) -> None:
    run = step(finished, "root/shelf/runs/*").name
    paths = {
        "root": "/",
        "dataset": "/datasets/shelf",
        "run": f"/runs/shelf/{run}",
        "missing": "/missing",
        "sign-in": "/sign-in",
    }
    with serving(finished / "root") as server:
        for name, path in paths.items():
            ready = LIVE if name in ("root", "dataset", "run") else "h1"
            shown = open_page(browser, server.url + path, scheme, width, ready=ready)
            shown.page.screenshot(path=tmp_path / f"{name}-{scheme}-{width}.png", full_page=True)
            violations = [one for one in shown.violations() if one["impact"] in ("serious", "critical")]
            assert violations == [] and shown.overflow() == 0, name
            assert [text for text in shown.messages if "404" not in text] == []
            assert name != "run" or broken_words(shown.page) == []
            shown.page.context.close()


def test_pages_can_be_used_with_the_keyboard(browser: Browser, finished: Path) -> None:
    run = step(finished, "root/shelf/runs/*").name
    with serving(finished / "root") as server:
        page = opened(browser, server, f"/runs/shelf/{run}").page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"


def test_sign_in_by_a_form_opens_the_pages(browser: Browser, finished: Path) -> None:
    token = "correct-horse-battery-staple-0123456789"
    with serving(finished / "root", DATAKIT_SERVE_TOKEN=token) as server:
        page = browser.new_context().new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(server.url)
        page.fill("#token", token)
        page.click("button")
        expect(page.locator(LIVE)).to_be_attached(timeout=PATIENCE)
        assert page.locator("#table-datasets a").first.inner_text() == "shelf"
        (cookie,) = page.context.cookies()
        assert cookie.get("httpOnly") and cookie.get("sameSite") == "Strict" and page.evaluate("document.cookie") == ""
