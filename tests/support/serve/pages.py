"""Opens pages of `datakit serve` in a browser."""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.support.report.browser import OpenPage, Scheme, open_page
from tests.support.serve.process import ServeProcess

LIVE = "#connection[data-live=yes]"


def opened(browser: Browser, server: ServeProcess, path: str, scheme: Scheme = "light", width: int = 1280) -> OpenPage:
    """Open a page, and wait until it is connected to its events."""
    return open_page(browser, server.url + path, scheme, width, ready=LIVE)
