"""A headless Chromium for tests: opens a page with a color scheme and a width, and notes what must not happen.

The system's package `chromium` provides the browser, and `playwright` drives it. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
AXE = Path(__file__).parents[2] / "fixtures" / "axe-core" / "axe.min.js"
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
RUN_AXE = (
    "axe.run({resultTypes: ['violations']}).then(found => JSON.stringify(found.violations.map("
    "one => ({id: one.id, impact: one.impact, nodes: one.nodes.map(node => node.html)}))))"
)
Scheme = Literal["light", "dark"]
PATIENCE = 120_000  # milliseconds; a busy machine may need long, and no test waits when its state is reached


def chromium() -> str:
    """Return the browser's path. Without a browser, fail in CI, and skip the test elsewhere."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        missing = "no chromium; run `apt-get install chromium`"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for all tests of a module. While it is open, no test in this process can run an event loop."""
    path = chromium()
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield opened
        opened.close()


@dataclass
class OpenPage:
    """An open page. messages: what the page wrote to the console, and its errors. requests: the URLs that it asked for,
    except its own.
    """

    page: Page
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def table(self, name: str) -> list[list[str]]:
        """Return the cells of a table: the numbers where there are numbers, otherwise the texts."""
        cells = "row => [...row.cells].map(cell => cell.dataset.value ?? cell.textContent)"
        return self.page.eval_on_selector(f"#table-{name}", f"table => [...table.rows].map({cells})")

    def violations(self) -> list[dict[str, Any]]:
        """Return what axe-core finds. It runs in a world of its own, because the page's policy forbids foreign code."""
        session = self.page.context.new_cdp_session(self.page)
        frame = session.send("Page.getFrameTree")["frameTree"]["frame"]["id"]
        world = session.send("Page.createIsolatedWorld", {"frameId": frame})["executionContextId"]
        session.send("Runtime.evaluate", {"expression": AXE.read_text(), "contextId": world})
        found = session.send(
            "Runtime.evaluate",
            {"expression": RUN_AXE, "contextId": world, "awaitPromise": True, "returnByValue": True},
        )
        return json.loads(found["result"]["value"])

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def open_page(
    browser: Browser, url: str, scheme: Scheme = "light", width: int = 1280, ready: str = "html[data-drawn]"
) -> OpenPage:
    """Open a page and wait for the element `ready`, by default until the charts of a report are drawn."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(PATIENCE)
    opened = OpenPage(context.new_page())
    opened.page.on("console", lambda message: opened.messages.append(message.text))
    opened.page.on("pageerror", lambda error: opened.messages.append(str(error)))
    opened.page.on("request", lambda request: opened.requests.append(request.url) if request.url != url else None)
    opened.page.goto(url)
    opened.page.wait_for_selector(ready, state="attached")
    return opened
