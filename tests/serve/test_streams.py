"""Events reach browsers once per change, across reconnections, restarts and slow readers."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from datakit.serve import streams
from datakit.serve.streams import PageStream, StreamLimits
from tests.support.serve.process import serving

SCOPE = {"type": "http", "method": "GET"}


class Reader:
    """A browser: takes messages, one every `pause` seconds, and leaves after `most` messages."""

    def __init__(self, most: int, pause: float = 0.0) -> None:
        self.most, self.pause, self.events = most, pause, list[str]()
        self.gone = asyncio.Event()

    async def receive(self) -> MutableMapping[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await asyncio.sleep(self.pause)
        if message.get("body"):
            self.events.append(message["body"].decode())
        if len(self.events) >= self.most:
            self.gone.set()


def stream(pages: list[str], last: str = "", limits: StreamLimits | None = None) -> PageStream:
    """Return a stream of a page that changes at each look, until the last of `pages` is reached."""
    shown = iter(range(10**9))
    version = [0]

    def look() -> tuple[tuple[object, ...], float | None]:
        version[0] = min(next(shown), len(pages) - 1)
        return (version[0],), 1.0

    return PageStream(look, lambda: pages[version[0]], 0.01, last, limits or StreamLimits())


def ids(events: list[str]) -> list[str]:
    return [line.removeprefix("id: ") for event in events for line in event.splitlines() if line.startswith("id: ")]


def contents(events: list[str]) -> list[str]:
    return [json.loads(line[6:])["html"] for event in events if "event: page" in event
            for line in event.splitlines() if line.startswith("data: ")]  # fmt: skip


def test_each_change_is_sent_once() -> None:
    reader = Reader(4)
    asyncio.run(stream(["a", "b", "b", "c"])(SCOPE, reader.receive, reader.send))
    assert reader.events[0].startswith("retry: ") and contents(reader.events) == ["a", "b", "c"]


def test_reconnected_browser_gets_only_what_differs() -> None:
    first = Reader(2)
    asyncio.run(stream(["a"])(SCOPE, first.receive, first.send))
    (last,) = ids(first.events)
    second = Reader(3)  # the retry time, a sign of life, and what differs
    asyncio.run(stream(["a", "b"], last)(SCOPE, second.receive, second.send))
    assert contents(second.events) == ["b"]


def test_slow_browser_gets_the_newest_state() -> None:
    reader, pages = Reader(3, pause=0.2), [str(number) for number in range(10_000)]
    asyncio.run(stream(pages)(SCOPE, reader.receive, reader.send))
    assert len(contents(reader.events)) == 2, "no queue is worked off"


def test_browser_that_takes_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SEND_SECONDS", 0.05)
    reader, limits = Reader(99), StreamLimits()

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(3600)

    asyncio.run(stream(["a"], limits=limits)(SCOPE, reader.receive, send))
    assert limits.open == 0


def test_stream_ends_with_the_server_and_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(99)
    asyncio.run(stream(["a"], limits=StreamLimits(lambda: True))(SCOPE, reader.receive, reader.send))
    monkeypatch.setattr(streams, "STREAM_SECONDS", 0.0)
    asyncio.run(stream(["a"])(SCOPE, reader.receive, reader.send))
    assert contents(reader.events) == []


def test_number_of_streams_is_limited(tmp_path: Path) -> None:
    (tmp_path / "shelf").mkdir()
    with serving(tmp_path) as server:
        opened = []
        try:
            for _ in range(streams.MOST_STREAMS):
                connection = socket.create_connection(("127.0.0.1", server.port), timeout=120)
                opened.append(connection)
                connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert connection.recv(12) == b"HTTP/1.1 200"
            answer = server.ask("/events")
            assert answer.status == 503 and answer.headers["retry-after"] == "10"
            assert server.ask("/").status == 200, "pages are still served"
        finally:
            for connection in opened:
                connection.close()
        while server.ask("/events", "HEAD").status != 200:
            assert server.process.poll() is None
