"""A web server on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hub_server.folder_routes import WebServer, web_server


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as running:
        yield running
