"""Starts `datakit serve` in a process of its own, and sends it requests byte for byte, without correcting them."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.paths import REPOSITORY


@dataclass
class Answer:
    """An answer: its status, its headers (names in lower case) and its body."""

    status: int
    headers: dict[str, str]
    body: str


@dataclass
class ServeProcess:
    """A running server. said: its messages so far."""

    process: subprocess.Popen[str]
    port: int
    said: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The address of the server, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, method: str = "GET", body: str = "", **headers: str) -> Answer:
        """Send a request; underscores in names of headers stand for hyphens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.putrequest(method, path, skip_host="Host" in sent, skip_accept_encoding=True)
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body.encode())
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read().decode())
        finally:
            connection.close()

    def raw(self, request: bytes) -> bytes:
        """Send bytes, and return the beginning of the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as connection:
            connection.sendall(request)
            return connection.recv(65536)


@contextmanager
def serving(root: Path | str, *options: str, port: int = 0, **environment: str) -> Iterator[ServeProcess]:
    """Serve a root while the block runs."""
    words = [sys.executable, "-m", "datakit", "--log", "json", "serve", str(root), "--port", str(port), *options]
    process = subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    )
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(json.loads(line)["message"])
            if json.loads(line)["event"] == "serving":
                port = int(json.loads(line)["url"].rstrip("/").rpartition(":")[2])
                break
        assert port, said
        server = ServeProcess(process, port, said)
        reader = threading.Thread(target=_collect, args=(process, said), daemon=True)
        reader.start()
        yield server
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def _collect(process: subprocess.Popen[str], said: list[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        said.append(json.loads(line)["message"])
