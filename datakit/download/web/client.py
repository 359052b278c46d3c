"""Makes HTTP clients that go only where `addresses.py` permits, and asks servers for bytes as they are stored.

`Accept-Encoding: identity` is sent, since ranges, lengths and ETags of a compressed body do not describe the file.
Proxies come from the environment (HTTPS_PROXY, NO_PROXY, ...), as usual. Redirects are never followed here; the callers
follow them, and each request passes the checks of the transport.
Cost: a client keeps its connections open; making one takes about 30 ms, so each process keeps one per server.
"""

from __future__ import annotations

import os
from functools import lru_cache
from urllib.request import getproxies, proxy_bypass

import httpx2

from datakit.download.web.addresses import Borders, ServerAddress

CREDENTIALS = ("authorization", "cookie", "proxy-authorization")
TIMEOUT = httpx2.Timeout(60.0, connect=20.0)  # seconds without any byte
PLAIN = {"Accept-Encoding": "identity", "User-Agent": "datakit"}


class GuardedTransport(httpx2.BaseTransport):
    """Sends requests. Raises RootError for an address that the borders do not permit. A request to another
    server than the home loses its credentials.
    """

    def __init__(self, borders: Borders) -> None:
        self._borders = borders
        self._permitted: set[ServerAddress] = set()  # servers whose addresses were looked up
        self._ways: dict[str, httpx2.HTTPTransport] = {}  # proxy ("": none) -> its connections

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request."""
        url = str(request.url)
        at_home = self._borders.is_home(url)
        if not at_home:
            self._leave_home(request, url)
        proxy = _proxy_of(request.url)
        response = self._way(proxy).handle_request(request)
        if not at_home and not proxy:
            self._check_peer(response, url)
        return response

    def _leave_home(self, request: httpx2.Request, url: str) -> None:
        server = ServerAddress.of(url)
        if server not in self._permitted:
            self._borders.check(url)
            self._permitted.add(server)
        for name in CREDENTIALS:
            request.headers.pop(name, None)

    def _check_peer(self, response: httpx2.Response, url: str) -> None:
        stream = response.extensions.get("network_stream")
        peer = stream.get_extra_info("server_addr") if stream is not None else None
        if not peer:
            return
        try:
            self._borders.check_address(str(peer[0]), url)
        except BaseException:
            response.close()
            raise

    def _way(self, proxy: str) -> httpx2.HTTPTransport:
        if proxy not in self._ways:
            self._ways[proxy] = httpx2.HTTPTransport(proxy=proxy or None)
        return self._ways[proxy]

    def close(self) -> None:
        """Close all connections."""
        for way in self._ways.values():
            way.close()


def _proxy_of(url: httpx2.URL) -> str:
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all") or ""
    if not proxy or proxy_bypass(url.host):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


@lru_cache(maxsize=16)
def client_for(borders: Borders) -> httpx2.Client:
    """Return this process's client for requests that begin at the home of these borders."""
    return httpx2.Client(
        transport=GuardedTransport(borders), headers=PLAIN, timeout=TIMEOUT, follow_redirects=False, trust_env=False
    )


os.register_at_fork(after_in_child=client_for.cache_clear)  # two processes must not share a connection
