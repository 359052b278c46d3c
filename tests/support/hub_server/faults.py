"""Faults in answers. Each function returns a fault, or is one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace

from tests.support.hub_server.site import Fault, Reply, Request


def status(number: int, retry_after: str = "") -> Fault:
    """Answer with an error."""
    headers = {"Retry-After": retry_after} if retry_after else {}
    return lambda request, reply: Reply(number, b"busy", headers, reply.kind)


def cut(count: int) -> Fault:
    """Close the connection after so many bytes of the body."""
    return lambda request, reply: replace(reply, cut=min(count, max(0, len(reply.body) - 1)))


def cut_at(share: float) -> Fault:
    """Close the connection after this share of the body."""
    return lambda request, reply: replace(reply, cut=int(share * max(0, len(reply.body) - 1)))


def gzipped(request: Request, reply: Reply) -> Reply:
    """Compress the body, as some proxies do whatever was asked for."""
    headers = {**reply.headers, "Content-Encoding": "gzip"}
    return replace(reply, body=gzip.compress(reply.body, mtime=0), headers=headers)


def whole(content: bytes) -> Fault:
    """Answer a request for a range with the whole file."""
    return lambda request, reply: Reply(200, content, {"ETag": reply.headers.get("ETag", "")}, reply.kind)


def chunked(request: Request, reply: Reply) -> Reply:
    """State no length of the body."""
    return replace(reply, chunked=True)


def slow(pause: float, piece: int) -> Fault:
    """Send the body piece by piece, with pauses."""
    return lambda request, reply: replace(reply, pause=pause, piece=piece)


def damaged(request: Request, reply: Reply) -> Reply:
    """Change a byte of the body."""
    middle = len(reply.body) // 2
    changed = reply.body[:middle] + bytes([reply.body[middle] ^ 1]) + reply.body[middle + 1 :] if reply.body else b""
    return replace(reply, body=changed)


def with_headers(**changed: str) -> Fault:
    """Change headers; `X_Repo_Commit` stands for `X-Repo-Commit`. An empty value removes the header."""
    named = {name.replace("_", "-"): value for name, value in changed.items()}

    def fault(request: Request, reply: Reply) -> Reply:
        kept = {name: value for name, value in reply.headers.items() if name.lower() not in {n.lower() for n in named}}
        return replace(reply, headers={**kept, **{name: value for name, value in named.items() if value}})

    return fault


def shorter(request: Request, reply: Reply) -> Reply:
    """Leave out the last byte of the body, and state this length."""
    return replace(reply, body=reply.body[:-1])


def without_next_page(request: Request, reply: Reply) -> Reply:
    """End a listing with this page."""
    return replace(reply, headers={name: value for name, value in reply.headers.items() if name != "Link"})


def without_last_entry(request: Request, reply: Reply) -> Reply:
    """Leave out the last entry of a page."""
    return replace(reply, body=json.dumps(json.loads(reply.body)[:-1]).encode())


def other_size(request: Request, reply: Reply) -> Reply:
    """State another size of the last file of a page."""
    entries = json.loads(reply.body)
    entries[-1]["size"] += 1
    return replace(reply, body=json.dumps(entries).encode())


def then(action: Callable[[], object]) -> Fault:
    """Answer rightly, and then do something."""

    def fault(request: Request, reply: Reply) -> Reply:
        action()
        return reply

    return fault


def redirected(location: str) -> Fault:
    """Answer with a redirect."""
    return lambda request, reply: Reply(302, b"", {**reply.headers, "Location": location}, reply.kind)
