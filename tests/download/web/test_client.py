"""Clients go only where they may, ask for bytes as they are stored, and use the proxies of the environment."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from datakit.download.web import addresses
from datakit.download.web.addresses import Borders, ServerAddress
from datakit.download.web.client import GuardedTransport
from datakit.errors import RootError
from tests.support.hub_server.folder_routes import WebServer, web_server
from tests.support.hub_server.site import Reply, Site, running

HEADERS = {"Authorization": "Bearer hf_secret", "Cookie": "a=b"}


@pytest.fixture
def other() -> Iterator[WebServer]:
    with web_server({"a": b"x"}) as server:
        yield server


def client(home: str, private: bool = False) -> httpx2.Client:
    transport = GuardedTransport(Borders(ServerAddress.of(home), private))
    return httpx2.Client(transport=transport, headers=HEADERS, follow_redirects=True, trust_env=False)


def test_credentials_stay_at_home(web: WebServer, other: WebServer) -> None:
    web.routes.files["a"] = b"x"
    with client(web.url, private=True) as ours:
        assert ours.get(f"{web.url}/a").content == ours.get(f"{other.url}/a").content == b"x"
    names = [{"authorization", "cookie"} & entry.request.headers.keys() for entry in web.site.log + other.site.log]
    assert names == [{"authorization", "cookie"}, set()]


def test_address_of_the_open_connection_is_checked(
    web: WebServer, other: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name may have a public address when it is looked up, and another one when the connection is made."""
    with client(web.url) as ours, pytest.raises(RootError, match=r"whose address 127\.0\.0\.1 is not public"):
        ours.get(f"{other.url}/a")
    assert not other.site.log
    monkeypatch.setattr(addresses, "_resolved", lambda place: ["93.184.215.14"])
    with client(web.url) as ours, pytest.raises(RootError, match=r"whose address 127\.0\.0\.1 is not public"):
        ours.get(f"{other.url}/a")


def test_proxies_of_the_environment_are_used(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    web.routes.files["a"] = b"x"
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def get(proxy: Site, url: str) -> tuple[bytes, list[str]]:
        with client(url) as ours:
            return ours.get(url).content, [entry.request.target for entry in proxy.log]

    with running(lambda request: Reply(200, b"from the proxy")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.address)
        url = "http://host.invalid/a"
        assert get(proxy, url) == (b"from the proxy", [url])
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert get(proxy, f"{web.url}/a") == (b"x", [url])
