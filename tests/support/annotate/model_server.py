"""A real HTTP server that speaks the chat-completions API, for the tests of `annotate/model_server/`.

It answers each request with what `answer(text, number)` returns, where `number` counts the requests about this text:
the content of an answer (a string), or a `Fault`. It records every request with its time and its headers.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MARK = "TEXT:"  # prompts of the tests end with this mark and the text
PROMPT = f"Rate the text. {MARK}{{text}}"


@dataclass(frozen=True)
class Fault:
    """Something other than a proper answer. status, headers, body: of the response. cut: how many bytes of the body are
    sent, although the response promises all. reset: end the connection with a TCP reset instead of a response. wait:
    seconds before the response.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None
    reset: bool = False
    wait: float = 0.0


Answering = Callable[[str, int], "str | Fault"]


@dataclass
class Request:
    text: str
    body: dict[str, Any]
    headers: dict[str, str]
    path: str
    time: float


@dataclass
class ChatServer:
    """A running server. requests: all that it has received so far."""

    answer: Answering
    requests: list[Request] = field(default_factory=list)
    most_at_once: int = 0
    _open: int = 0
    _counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def counts(self) -> Counter[str]:
        """Return the number of requests about each text."""
        return Counter(one.text for one in self.requests)

    def receive(self, path: str, headers: dict[str, str], data: bytes) -> str | Fault:
        body = json.loads(data)
        text = body["messages"][-1]["content"].partition(MARK)[2]
        with self._lock:
            self.requests.append(Request(text, body, headers, path, time.monotonic()))
            self._counts[text] += 1
            number = self._counts[text]
            self._open += 1
            self.most_at_once = max(self.most_at_once, self._open)
        try:
            return self.answer(text, number)
        finally:
            with self._lock:
                self._open -= 1


def completion(content: str | None, finish: str = "stop", tokens: tuple[int, int] = (10, 2)) -> bytes:
    """Return the body of a proper response."""
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish}
    return json.dumps({"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()


@contextmanager
def chat_server(answer: Answering) -> Iterator[ChatServer]:
    """Run a server during the `with` block."""
    server = ChatServer(answer)
    http = _Http(("127.0.0.1", 0), _Handler)
    http.chat = server
    server.port = http.server_address[1]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    chat: ChatServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed break connections; the tests look at what arrived."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        found = self.server.chat.receive(self.path, headers, data)
        fault = found if isinstance(found, Fault) else Fault(body=completion(found))
        time.sleep(fault.wait)
        if fault.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        self.send_response(fault.status)
        for name, value in fault.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(fault.body)))
        self.end_headers()
        self.wfile.write(fault.body[: fault.cut])
        self.wfile.flush()
        if fault.cut is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""
