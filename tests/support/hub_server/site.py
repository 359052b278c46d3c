"""An HTTP server made of routes. It logs each request with the number of bytes of the body that it sent."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(frozen=True)
class Request:
    """A request. path: without the query string, decoded. target: the path and the query string as they were sent."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        return {name: values[-1] for name, values in parse_qs(urlsplit(self.target).query).items()}


@dataclass
class Reply:
    """An answer. kind: what it is, for the log and for faults. cut: close the connection after so many bytes of the
    body. pauses: wait so many seconds before each `piece` bytes. length: a Content-Length other than the right one.
    """

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = ""
    cut: int | None = None
    pause: float = 0.0
    piece: int = 1 << 16
    length: int | None = None
    chunked: bool = False


@dataclass(frozen=True)
class Logged:
    """A request in the log, and how many bytes of the answer's body were sent."""

    kind: str
    request: Request
    status: int
    sent: int


Route = Callable[[Request], Reply | None]
Fault = Callable[[Request, Reply], Reply]


@dataclass
class Site:
    """A running server. faults: for each kind of answer, what happens to the next ones, in order; None: nothing."""

    routes: list[Route]
    address: str = ""
    entries: list[Logged] = field(default_factory=list)
    faults: dict[str, list[Fault | None]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    active: int = 0  # the number of requests that are being answered

    @property
    def log(self) -> list[Logged]:
        """The requests so far, after all answers have ended."""
        self.settle()
        return self.entries

    def settle(self) -> None:
        """Wait until no request is being answered, so that the log is complete."""
        while self.active:
            time.sleep(0.001)

    def sent(self, kind: str) -> int:
        """The number of bytes sent in bodies of this kind."""
        return sum(entry.sent for entry in self.log if entry.kind == kind)

    def count(self, kind: str) -> int:
        """The number of requests of this kind."""
        return sum(entry.kind == kind for entry in self.log)

    def answer(self, request: Request) -> Reply:
        """The answer to a request, with its fault."""
        replies = (route(request) for route in self.routes)
        reply = next((reply for reply in replies if reply is not None), Reply(404, kind="unknown"))
        with self.lock:
            waiting = self.faults.get(reply.kind)
            fault = waiting.pop(0) if waiting else None
        return fault(request, reply) if fault is not None else reply


def handler_of(site: Site) -> type[BaseHTTPRequestHandler]:
    """The class that handles the site's requests."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16

        def handle_any(self) -> None:
            with site.lock:
                site.active += 1
            try:
                self._handle()
            finally:
                with site.lock:
                    site.active -= 1

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = Request(self.command, self.path, {n.lower(): v for n, v in self.headers.items()}, body)
            reply, sent = site.answer(request), 0
            try:
                sent = self._send(reply)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            with site.lock:
                site.entries.append(Logged(reply.kind, request, reply.status, sent))

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        def _send(self, reply: Reply) -> int:
            self.send_response_only(reply.status)
            length = len(reply.body) if reply.length is None else reply.length
            framing = ("Transfer-Encoding", "chunked") if reply.chunked else ("Content-Length", str(length))
            for name, value in (*reply.headers.items(), framing):
                self.send_header(name, value)
            self.end_headers()
            sent = self._send_body(reply) if self.command != "HEAD" else 0
            if reply.chunked and reply.cut is None:
                self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
            if reply.cut is not None or length != len(reply.body):
                self.close_connection = True
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_WR)
            return sent

        def _send_body(self, reply: Reply) -> int:
            body = reply.body if reply.cut is None else reply.body[: reply.cut]
            for start in range(0, len(body), reply.piece):
                piece = body[start : start + reply.piece]
                if reply.pause:
                    time.sleep(reply.pause)
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if reply.chunked else piece)
                if reply.pause:
                    self.wfile.flush()
            return len(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Print nothing."""

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients may go away."""


@contextmanager
def running(*routes: Route) -> Iterator[Site]:
    """Run a site for the block."""
    site = Site(list(routes))
    http = _Server(("127.0.0.1", 0), handler_of(site))
    site.address = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def ranged(request: Request, content: bytes, headers: dict[str, str], kind: str) -> Reply:
    """The answer to a request for a file or a range of it."""
    wanted = request.headers.get("range", "").removeprefix("bytes=")
    headers = {"Accept-Ranges": "bytes", **headers}
    if not wanted:
        return Reply(200, content, headers, kind)
    first, _, last = wanted.partition("-")
    start, stop = int(first), min(int(last) + 1 if last else len(content), len(content))
    if start >= len(content):
        return Reply(416, b"", {**headers, "Content-Range": f"bytes */{len(content)}"}, kind)
    return Reply(
        206, content[start:stop], {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}, kind
    )
