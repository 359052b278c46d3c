"""An HTTP proxy in front of a server with the interface of S3 or of Google Cloud Storage, which notes every request and
changes answers on order.

    with bucket_proxy("http://127.0.0.1:41234") as proxy:
        proxy.order(lists(page=2), without_objects(3), times=1)
        proxy.order(reads("big.bin"), cut_after(1 << 20))
        ...                                            # clients use proxy.address
    [seen.query for seen in proxy.seen if seen.kind == "list"]

It divides the listings of the emulator of Google Cloud Storage into pages, because the emulator does not.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.faults.faulty_proxy import request_body

TOKEN_PATH = "/token"  # the proxy answers every request for a token
TOKEN = "ya29.test-token-of-the-proxy"
HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "date", "server")


@dataclass
class Seen:
    """A request. kind: `list`, `read` (an object's bytes), `describe` (an object's size and checksum) or `write`. key:
    the object's key; "" for a listing. page: the number of the page, from 1, for a listing. sent: how many bytes of the
    answer's body were sent.
    """

    kind: str
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    key: str = ""
    page: int = 0
    status: int = 0
    sent: int = 0

    @property
    def first(self) -> int:
        """The first byte that was requested."""
        return int(self.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")[0])


@dataclass(frozen=True)
class Answer:
    """An answer. cut: close the connection after so many bytes of the body. length: the Content-Length to state, if it
    is not that of the body. held: wait for this before the connection is closed.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    cut: int | None = None
    length: int | None = None
    held: threading.Event | None = None


Matches = Callable[[Seen], bool]
Change = Callable[[Answer], Answer]


@dataclass
class _Order:
    matches: Matches
    change: Change
    times: int


@dataclass
class BucketProxy:
    """The requests that a proxy has seen, and what it was ordered to do."""

    upstream: str  # host:port
    address: str = ""
    seen: list[Seen] = field(default_factory=list)
    orders: list[_Order] = field(default_factory=list)
    after: list[tuple[Matches, Callable[[], None]]] = field(default_factory=list)  # what happens after an answer
    lock: threading.Lock = field(default_factory=threading.Lock)
    _tokens: dict[str, int] = field(default_factory=dict)  # the token of a page -> the number of the page

    def order(self, matches: Matches, change: Change, times: int = 1) -> None:
        """Change the next `times` answers to requests that match."""
        self.orders.append(_Order(matches, change, times))

    def then(self, matches: Matches, act: Callable[[], None]) -> None:
        """Call `act` once, after the first answer to a request that matches."""
        self.after.append((matches, act))

    def reset(self) -> None:
        """Forget all requests and orders."""
        self.seen.clear()
        self.orders.clear()
        self.after.clear()

    def of(self, kind: str, key: str = "") -> list[Seen]:
        """The requests of a kind, in order. key: how the keys of these requests end."""
        return [seen for seen in self.seen if seen.kind == kind and seen.key.endswith(key)]

    def note(self, seen: Seen) -> Change | None:
        """Note a request, and return what to do to its answer."""
        with self.lock:
            if seen.kind == "list":
                token = seen.query.get("continuation-token") or seen.query.get("pageToken") or ""
                seen.page = self._tokens.get(token, 1)
            self.seen.append(seen)
            for order in self.orders:
                if order.times > 0 and order.matches(seen):
                    order.times -= 1
                    return order.change
        return None

    def page_follows(self, seen: Seen, body: bytes) -> None:
        """Remember the number of the page for which the token in an answer stands."""
        token = _between(body, b"<NextContinuationToken>", b"</NextContinuationToken>")
        if not token and seen.path.startswith("/storage/v1/"):
            token = (json.loads(body or b"{}").get("nextPageToken") or "").encode()
        if token:
            self._tokens[token.decode()] = seen.page + 1

    def act(self, seen: Seen) -> None:
        """Do what was to be done after the answer to this request."""
        with self.lock:
            due = [act for matches, act in self.after if matches(seen)]
            self.after = [(matches, act) for matches, act in self.after if not matches(seen)]
        for act in due:
            act()


def _between(body: bytes, start: bytes, stop: bytes) -> bytes:
    return body.partition(start)[2].partition(stop)[0]


@contextmanager
def bucket_proxy(address: str) -> Iterator[BucketProxy]:
    """Start a proxy in front of the server at `address`."""
    proxy = BucketProxy(urlsplit(address).netloc)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": proxy}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    proxy.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    proxy: BucketProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _handle(self) -> None:
        seen = _seen(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        body = request_body(self)
        if self.path == TOKEN_PATH:
            token = {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
            self._send(Answer(200, {"Content-Type": "application/json"}, json.dumps(token).encode()), seen)
            return
        change = self.proxy.note(seen)
        answer = self._forwarded(body, seen)
        if seen.kind == "list":
            answer = _paged(seen, answer)
            self.proxy.page_follows(seen, answer.body)
        self._send(change(answer) if change else answer, seen)
        self.proxy.act(seen)

    def _forwarded(self, body: bytes, seen: Seen) -> Answer:
        connection = http.client.HTTPConnection(self.proxy.upstream, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
            connection.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
            found = connection.getresponse()
            data = found.read()
        finally:
            connection.close()
        kept = {name: value for name, value in found.getheaders() if name.lower() not in HOP}
        stated = found.getheader("Content-Length") if self.command == "HEAD" else None
        return Answer(found.status, kept, data, length=int(stated) if stated else None)

    def _send(self, answer: Answer, seen: Seen) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
        self.end_headers()
        body = answer.body if answer.cut is None else answer.body[: answer.cut]
        seen.status = answer.status
        try:
            self.wfile.write(body)
            self.wfile.flush()
            seen.sent = len(body)
        except OSError:
            pass  # the client has gone; `sent` stays 0
        if answer.held is not None:
            answer.held.wait(60)
        if answer.cut is not None or answer.length not in (None, len(body)):
            self.close_connection = self.command != "HEAD"

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _handle

    def log_message(self, format: str, *args: object) -> None:
        """Do not log; requests are noted instead."""


def _seen(method: str, target: str, headers: dict[str, str]) -> Seen:
    parts = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    seen = Seen("write", method, parts.path, query, headers)
    if method not in ("GET", "HEAD"):
        return seen
    if parts.path.startswith("/download/storage/v1/b/"):
        return replace(seen, kind="read", key=unquote(parts.path.partition("/o/")[2]))
    if parts.path.startswith("/storage/v1/b/"):
        key = unquote(parts.path.partition("/o/")[2])
        return replace(seen, kind="describe" if key else "list", key=key)
    key = unquote(parts.path.lstrip("/").partition("/")[2])
    if "list-type" in query or not key:
        return replace(seen, kind="list")
    return replace(seen, kind="describe" if method == "HEAD" else "read", key=key)


def _paged(seen: Seen, answer: Answer) -> Answer:
    """Divide a listing of Google Cloud Storage into pages; leave others as they are."""
    if not seen.path.startswith("/storage/v1/") or answer.status != 200:
        return answer
    listing, number = json.loads(answer.body), int(seen.query.get("maxResults", 1000))
    start = int(seen.query.get("pageToken", "0"))
    items = listing["items"]
    listing["items"] = items[start : start + number]
    if start + number < len(items):
        listing["nextPageToken"] = str(start + number)
    return replace(answer, body=json.dumps(listing).encode())
