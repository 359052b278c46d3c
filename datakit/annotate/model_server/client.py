"""Sends one request to a model server, and classifies the outcome: an answer, a failure that may pass, a refusal of
this document, or a refusal of every request.

Redirects are not followed: a text goes to the host that the recipe names, or nowhere. At most MOST_BYTES of a response
are read, within the time limit. Neither the key nor anything that the server or the library has written gets into a
message, because servers quote what they were sent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpx2
import msgspec
from msgspec.structs import replace

from datakit.annotate.model_server.config import CHAT, ModelServerConfig, is_loopback
from datakit.errors import ModelServerError

MOST_BYTES = 4 << 20  # of a response
LONGEST_WAIT = 600.0  # seconds; a server that asks for more is asked again sooner
WAIT, WAITS = "wait", (408, 425, 429)  # the server asks to come back later
REFUSES_ALL = {
    401: "it does not accept the key",
    402: "it demands payment",
    403: "the key does not permit this request",
    404: "it knows no such address or model",
    405: "it does not accept requests at this address",
    407: "a proxy demands authentication",
}


class Reply(msgspec.Struct, frozen=True):
    """An answer, and the numbers of tokens that the server has counted (None if it does not say)."""

    content: str
    input_tokens: int | None
    output_tokens: int | None


class PassingError(Exception):
    """A failure that may pass. The message never quotes the server. after: how long the server asks to wait, in
    seconds. busy: True if the server only asks to come back later.
    """

    def __init__(self, reason: str, after: float = 0.0, busy: bool = False) -> None:
        super().__init__(reason)
        self.after, self.busy = after, busy


class BadAnswerError(Exception):
    """An answer that is incomplete. reply: what the server has counted."""

    def __init__(self, reason: str, reply: Reply) -> None:
        super().__init__(reason)
        self.reply = reply


class RefusedDocumentError(Exception):
    """A request that the server refuses because of its content, for example because the text is too long."""


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


@dataclass
class Client:
    """A connection pool to one server. It may be used by several threads."""

    config: ModelServerConfig
    key: str = ""

    def __post_init__(self) -> None:
        headers = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "datakit"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        most = self.config.concurrency
        self._url = f"{self.config.url.rstrip('/')}/{CHAT}"
        self._client = httpx2.Client(
            headers=headers, follow_redirects=False, timeout=httpx2.Timeout(self.config.timeout, pool=None),
            limits=httpx2.Limits(max_connections=most, max_keepalive_connections=most),
            trust_env=not is_loopback(urlsplit(self.config.url).hostname or ""),  # a proxy cannot reach this machine
        )  # fmt: skip

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def ask(self, body: bytes) -> Reply:
        """Send a request. Raises PassingError, BadAnswerError, RefusedDocumentError or, if the server refuses every
        request, ModelServerError.
        """
        deadline = time.monotonic() + self.config.timeout
        try:
            with self._client.stream("POST", self._url, content=body) as response:
                status, headers = response.status_code, response.headers
                data = bytearray()
                for chunk in response.iter_raw():
                    data += chunk
                    if len(data) > MOST_BYTES:
                        raise PassingError(f"a response of more than {MOST_BYTES >> 20} MiB")
                    if time.monotonic() > deadline:
                        raise PassingError(f"no response within {self.config.timeout:g} s")
        except httpx2.TimeoutException as error:
            raise PassingError(f"no response within {self.config.timeout:g} s") from error
        except httpx2.ConnectError as error:
            raise PassingError("no connection to the server") from error
        except httpx2.HTTPError as error:
            raise PassingError(f"the connection failed ({type(error).__name__})") from error
        if status == 200:
            return self._checked(_reply(bytes(data)))
        raise self._failure(status, headers)

    def _checked(self, reply: Reply) -> Reply:
        """Refuse an answer that contains the key, because answers are stored."""
        if self.key and self.key in reply.content:
            raise BadAnswerError("the answer contains the key", replace(reply, content=""))
        return reply

    def _failure(self, status: int, headers: Mapping[str, str]) -> Exception:
        where = f"the model server {self.config.host} refuses requests (HTTP {status})"
        if 300 <= status < 400:
            return ModelServerError(f"{where}: it redirects to another address; give the final address as `url`")
        if status in REFUSES_ALL:
            return ModelServerError(
                f"{where}: {REFUSES_ALL[status]}; correct `url`, `model`, or the key in the variable named by `key_env`"
            )
        after = retry_after(headers.get("retry-after", ""))
        if status in WAITS or (status == 503 and after):
            return PassingError(f"HTTP {status}", after, busy=True)
        if 400 <= status < 500:
            return RefusedDocumentError(f"the server refuses the request (HTTP {status})")
        return PassingError(f"HTTP {status}", after)


def retry_after(value: str, now: datetime | None = None) -> float:
    """Return the number of seconds that a header `Retry-After` asks to wait, at most LONGEST_WAIT; 0 if it is absent or
    invalid.

    >>> retry_after("2.5"), retry_after("soon"), retry_after("9999")
    (2.5, 0.0, 600.0)
    >>> retry_after("Wed, 21 Oct 2015 07:28:00 GMT", datetime(2015, 10, 21, 7, 27, 50, tzinfo=UTC))
    10.0
    """
    try:
        seconds = float(value)
    except ValueError:
        try:
            moment = parsedate_to_datetime(value)
        except ValueError:
            return 0.0
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = (aware - (now or datetime.now(UTC))).total_seconds()
    return min(max(seconds, 0.0), LONGEST_WAIT) if math.isfinite(seconds) else 0.0


def _reply(data: bytes) -> Reply:
    """Return the answer in a response. Raises PassingError for a response that is not one of a chat API."""
    try:
        found = msgspec.json.decode(data, type=_Completion)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise PassingError("a response that is not in the form of the API") from error
    usage = found.usage or _Usage()
    counts = _count(usage.prompt_tokens), _count(usage.completion_tokens)
    if not found.choices or found.choices[0].message.content is None:
        raise BadAnswerError("the response contains no answer", Reply("", *counts))
    reply = Reply(found.choices[0].message.content, *counts)
    if found.choices[0].finish_reason == "length":
        raise BadAnswerError("the answer is longer than max_tokens", reply)
    return reply


def _count(value: int | None) -> int | None:
    return value if value is not None and value >= 0 else None
