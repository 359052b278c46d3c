"""Decides which requests are answered: checks the host name, the method, the origin and the session of each request.

Browsers let any web page send requests to this machine. So a request is refused if its Host header names another host,
as after DNS rebinding, which makes the name of a foreign host resolve to this machine. A request that a page of another
site sent is refused too, unless a person followed a link there. If there is a token, everything except the sign-in page
and the assets needs a session. A session is a cookie that is signed with a key made from the token. So the server keeps
no list of sessions, and a session outlives a restart of the server with the same token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

COOKIE = "datakit_session"
SESSION_SECONDS = 12 * 3600
MOST_WRONG, WRONG_SECONDS = 10, 60.0  # after so many wrong tokens in so many seconds, no token is checked
LONGEST_ADDRESS = 4096
SIGN_IN = "/sign-in"
OPEN_PATHS = (SIGN_IN, "/assets/")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass
class Access:
    """Checks tokens and sessions. token: "" if everybody may look. once: the token can be exchanged only once."""

    token: str = ""
    once: bool = False
    _key: bytes = field(init=False, repr=False)
    _wrong: deque[float] = field(default_factory=deque, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _used: bool = False

    def __post_init__(self) -> None:
        self._key = hashlib.sha256(b"datakit serve session\0" + self.token.encode()).digest()

    def exchange(self, token: str) -> str | None:
        """Return the value of a new session's cookie; None if the token is wrong or has been used. Raises
        TimeoutError after too many wrong tokens.
        """
        with self._lock:
            now = time.monotonic()
            while self._wrong and now - self._wrong[0] > WRONG_SECONDS:
                self._wrong.popleft()
            if len(self._wrong) >= MOST_WRONG:
                raise TimeoutError("too many wrong tokens; wait a minute")
            right = hmac.compare_digest(token.encode(), self.token.encode())
            if not right or not self.token or (self.once and self._used):
                self._wrong.append(now)
                return None
            self._used = True
        return self._signed(f"{int(time.time()) + SESSION_SECONDS}.{secrets.token_urlsafe(16)}")

    def _signed(self, text: str) -> str:
        digest = hmac.digest(self._key, text.encode(), "sha256")
        return f"{text}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"

    def admits(self, cookies: str) -> bool:
        """Return True if a request with this Cookie header may see the root."""
        if not self.token:
            return True
        try:
            morsel = SimpleCookie(cookies).get(COOKIE)
        except CookieError:
            return False
        value = morsel.value if morsel else ""
        end = value.partition(".")[0]
        known = hmac.compare_digest(self._signed(value.rpartition(".")[0]).encode(), value.encode())
        return known and end.isascii() and end.isdecimal() and int(end) > time.time()


@dataclass
class Gate:
    """An ASGI application that passes the requests that it does not refuse to `inside`, and adds to each answer the
    security headers that it lacks. hosts: the host names of this server, in lower case. refuse: makes the answer to a
    refused request.
    """

    inside: Application
    access: Access
    hosts: frozenset[str]
    refuse: Callable[[int, str], Application]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.inside(scope, receive, send)
            return

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                more = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(one for one in more if one[0] not in known)]
            await send(message)

        problem = self._problem(scope)
        answer = self.inside if problem is None else self.refuse(*problem)
        await answer(scope, receive, guarded)

    def _problem(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the message with which a request is refused; None if it is not."""
        headers: dict[str, str] = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            return 400, "The request has no Host header, or several."
        if host_name(headers["host"]) not in self.hosts:
            return 421, "This server has another name. Open the address that datakit serve printed."
        if len(scope["raw_path"]) + len(scope["query_string"]) > LONGEST_ADDRESS:
            return 414, "The address is too long."
        signing_in = scope["path"] == SIGN_IN
        if scope["method"] not in ("GET", "HEAD") and not (signing_in and scope["method"] == "POST"):
            return 405, "Only GET and HEAD are allowed."
        if _is_foreign(headers, scope["method"]):
            return 403, "The request comes from another site."
        if not scope["path"].startswith(OPEN_PATHS) and not self.access.admits(headers.get("cookie", "")):
            return 401, "This page needs a token."
        return None


def host_name(header: str) -> str:
    """Return the host name of a Host header, without the port; "" for a malformed header.

    >>> host_name("Localhost:8000"), host_name("[::1]:80"), host_name("evil.example"), host_name("a/b")
    ('localhost', '::1', 'evil.example', '')
    """
    try:
        parts = urlsplit(f"//{header}")
        return "" if parts.netloc != header or "@" in header else (parts.hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_foreign(headers: dict[str, str], method: str) -> bool:
    """Return True if a page of another site sent the request, other than by a link that a person followed."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if site is not None:  # browsers omit it over plain http to another machine; then the Origin decides
        return site not in ("none", "same-origin") and not (followed and method != "POST")
    return origin is not None and urlsplit(origin).netloc.lower() != headers["host"].lower()
