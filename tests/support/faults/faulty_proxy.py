"""An HTTP proxy between an S3 client and its server that refuses a share of all requests, and counts them.

    with s3_root() as root, faulty_proxy(share=0.1) as proxy:
        ...                     # AWS_ENDPOINT_URL points to the proxy
    proxy.requests, proxy.injected

Three faults in turn: 503 SlowDown (throttling) and 500 InternalError before the request reaches the server, and a 500
after the server has carried out the request, so that a repeated conditional PUT finds its own object.
"""

from __future__ import annotations

import http.client
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

ERROR = "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{}</Code><Message>{}</Message></Error>"
FAULTS = {
    "SlowDown": (503, "Please reduce your request rate."),
    "InternalError": (500, "We encountered an internal error. Please try again."),
    "InternalErrorAfterwards": (500, "We encountered an internal error. Please try again."),
}
HOP = ("connection", "keep-alive", "transfer-encoding", "content-length")


@dataclass
class Proxy:
    """The proxy's settings and counts. `share` and `seconds_ahead` may be changed at any time.

    share: the share of requests that are refused. seconds_ahead: how far the store's clock is ahead of ours.
    """

    upstream: str
    share: float
    dice: random.Random
    seconds_ahead: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)  # by method
    log: list[tuple[str, str]] = field(default_factory=list)  # the method and the path of each request, in order
    injected: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, method: str, path: str) -> str:
        """Count a request and choose its fault; "" for none."""
        with self.lock:
            self.requests[method] += 1
            self.log.append((method, path))
            if self.dice.random() >= self.share:
                return ""
            fault = list(FAULTS)[self.injected.total() % len(FAULTS)]
            self.injected[fault] += 1
            return fault


@contextmanager
def faulty_proxy(share: float, seed: int = 1) -> Iterator[Proxy]:
    """Put a proxy in front of AWS_ENDPOINT_URL for the block; the variable names the proxy meanwhile."""
    import s3fs

    proxy = Proxy(urlsplit(os.environ["AWS_ENDPOINT_URL"]).netloc, share, random.Random(seed))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": proxy}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        s3fs.S3FileSystem.clear_instance_cache()
        try:
            yield proxy
        finally:
            server.shutdown()
            server.server_close()
            s3fs.S3FileSystem.clear_instance_cache()


def request_body(handler: BaseHTTPRequestHandler) -> bytes:
    """Read the body of a request, which may be chunked."""
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    parts = []
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        parts.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(parts)


class _Handler(BaseHTTPRequestHandler):
    """Serves one client connection; opens a connection to the server for each request."""

    proxy: Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _handle(self) -> None:
        fault = self.proxy.fault(self.command, self.path)
        body = request_body(self)
        if fault and not fault.endswith("Afterwards"):
            self._refuse(fault)
            return
        connection = http.client.HTTPConnection(self.proxy.upstream, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
            connection.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if fault:
            self._refuse(fault)
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in (*HOP, "date", "server"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(data)

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the `Date` header, shifted by `seconds_ahead`."""
        return super().date_time_string((timestamp or time.time()) + self.proxy.seconds_ahead)

    def _refuse(self, fault: str) -> None:
        status, message = FAULTS[fault]
        data = ERROR.format(fault.removesuffix("Afterwards"), message).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def log_message(self, format: str, *args: object) -> None:
        """Do not log; requests are counted instead."""
