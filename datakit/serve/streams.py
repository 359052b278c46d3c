"""Sends a page to a browser again whenever it changes, as server-sent events.

An event holds the page's whole content, so nothing is queued for a slow browser: it gets the newest state when it has
taken the one before. The event's id is a hash of the content. A browser that connects again sends the id of its last
event, also to a server that was restarted in between, and gets the content only if it differs. A stream ends after
STREAM_SECONDS, or when the browser does not take an event within SEND_SECONDS; browsers then connect again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import orjson
import xxhash

from datakit.serve.access import Receive, Scope, Send

MOST_STREAMS = 32
STREAM_SECONDS = 3600.0
SEND_SECONDS = 30.0
ALIVE_SECONDS = 10.0  # if no page is sent for this long, only the age of the newest event is sent
RETRY_MILLISECONDS = 1000


@dataclass
class StreamLimits:
    """Counts the open streams of a server. stopping: returns True when the server is about to end."""

    stopping: Callable[[], bool] = lambda: False
    open: int = 0


@dataclass
class PageStream:
    """An ASGI application that sends events. look: returns the version of the page and the seconds since the newest
    event. render: returns the page's content.
    """

    look: Callable[[], tuple[tuple[object, ...], float | None]]
    render: Callable[[], str]
    pause: float
    last_id: str
    limits: StreamLimits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the browser goes away, the server ends or the time is over."""
        self.limits.open += 1
        try:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
                return
            gone = asyncio.create_task(_until_gone(receive))
            try:
                await self._send_events(send, gone)
            finally:
                gone.cancel()
        except TimeoutError:
            return  # the connection is closed because the answer is not complete
        finally:
            self.limits.open -= 1

    async def _send_events(self, send: Send, gone: asyncio.Task[None]) -> None:
        async for event in self._events(gone):
            body = {"type": "http.response.body", "body": event, "more_body": True}
            await asyncio.wait_for(send(body), SEND_SECONDS)
        if not gone.done():
            await asyncio.wait_for(send({"type": "http.response.body", "body": b""}), SEND_SECONDS)

    async def _events(self, gone: asyncio.Task[None]) -> AsyncIterator[bytes]:
        yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
        ending, version, sent, at = time.monotonic() + STREAM_SECONDS, None, self.last_id, 0.0
        while time.monotonic() < ending and not gone.done() and not self.limits.stopping():
            newest, age = await asyncio.to_thread(self.look)
            if newest != version:
                version, html = newest, await asyncio.to_thread(self.render)
                digest = xxhash.xxh3_64_hexdigest(html.encode())
                if digest != sent:
                    sent, at = digest, time.monotonic()
                    yield _event("page", {"html": html, "age": age}, digest)
            if time.monotonic() - at > ALIVE_SECONDS:
                at = time.monotonic()
                yield _event("alive", {"age": age})
            await asyncio.wait([gone], timeout=min(self.pause, 1.0))


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(name: str, data: dict[str, object], number: str = "") -> bytes:
    head = f"id: {number}\n" if number else ""
    return f"event: {name}\n{head}data: ".encode() + orjson.dumps(data) + b"\n\n"
