"""Serves files over HTTP, but only to requests with a valid signature, as stores do with presigned URLs.

with signed_server(folder) as server:
    url = server.sign("a.jsonl", "secret")     # a GET of this URL, as it is written, is answered
    server.accepted.clear()                    # from now on, all signatures have expired
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from xxhash import xxh3_64_hexdigest


@dataclass
class SignedServer:
    """A running server. accepted: the requests (the path with its query string) that it answers.

    checksums: True if answers have an ETag. served: the number of GETs of a range or a file.
    """

    folder: Path
    address: str = ""
    accepted: set[str] = field(default_factory=set)
    checksums: bool = True
    served: int = 0

    def sign(self, name: str, signature: str) -> str:
        """Return a URL for a file. Its escapes must reach the server as they are."""
        request = f"/bucket/{name}?X-Amz-Credential=AK%2Fus%2Baws4&X-Amz-Expires=60&X-Amz-Signature={signature}"
        self.accepted.add(request)
        return self.address + request


@contextmanager
def signed_server(folder: Path) -> Iterator[SignedServer]:
    """Start a server for the block."""
    server = SignedServer(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._end(403)  # the signature covers the method

        def do_GET(self) -> None:
            if self.path not in server.accepted:
                self._end(403, b"<Error>SignatureDoesNotMatch</Error>")
                return
            server.served += 1
            content = (folder / self.path.partition("?")[0].removeprefix("/bucket/")).read_bytes()
            wanted = self.headers.get("Range", "").removeprefix("bytes=")
            if not wanted:
                self._end(200, content, content)
                return
            first, last = wanted.split("-")
            part = content[int(first) : int(last) + 1]
            self._end(206, part, content, f"bytes {first}-{last}/{len(content)}")

        def _end(self, status: int, body: bytes = b"", content: bytes = b"", part: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if content and server.checksums:
                self.send_header("ETag", f'"{xxh3_64_hexdigest(content)}"')
            if part:
                self.send_header("Content-Range", part)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Print nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.address = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
