"""Asks a model server about one document until it gives a valid answer or the attempts are used up.

Every request that fails or whose answer is invalid is an attempt, except if the server asks to come back later (for
example HTTP 429, or 503 with Retry-After): then the request is repeated, at most MOST_BUSY times in a row. Between
attempts, the time to wait doubles and is random, so that many clients do not come back at the same moment. It is longer
after an attempt without an answer, because a server takes a while to start again.

If the last attempt has brought no answer, either the server is down or this document makes it fail. A request with a
fixed text shows which: if it is not answered, the task ends with an error, and the document stays open. If it is
answered, the server may have just come back, so the document is asked about once more before it has failed. So the fate
of a document does not depend on other documents.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field

from datakit.annotate.model_server.answer_format import AnswerError, AnswerFormat
from datakit.annotate.model_server.answer_store import Answer
from datakit.annotate.model_server.client import (
    BadAnswerError,
    Client,
    PassingError,
    RefusedDocumentError,
    Reply,
)
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.annotate.model_server.request_body import PROBE, request_body
from datakit.annotate.model_server.spending import Allowance
from datakit.errors import TaskError, counted

FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between attempts
FIRST_OUTAGE_WAIT = 2.0  # the same after the first attempt without an answer; 4 attempts then span at least 7 s
MOST_BUSY = 20  # requests in a row that the server may put off


class StoppedError(Exception):
    """The task is ending, so the document stays open."""


@dataclass
class Pause:
    """When the server asks to wait, all requests of a task wait. stop: set if the task is ending."""

    stop: threading.Event = field(default_factory=threading.Event)
    _until: float = 0.0

    def extend(self, seconds: float) -> None:
        """Send no request before this many seconds have passed."""
        self._until = max(self._until, time.monotonic() + seconds)

    def wait(self, seconds: float = 0.0) -> None:
        """Wait for this time, and for the end of the pause. Raises StoppedError."""
        until = time.monotonic() + seconds
        while (left := max(until, self._until) - time.monotonic()) > 0:
            if self.stop.wait(min(left, 1.0)):
                break
        if self.stop.is_set():
            raise StoppedError


@dataclass
class _Tries:
    """The attempts for a document so far. answered, reason: whether the last one brought an answer, and why it failed.
    outages: the number of those without an answer.
    """

    count: int = 0
    outages: int = 0
    answered: bool = False
    reason: str = ""

    def add(self, reason: str, answered: bool) -> None:
        self.count, self.outages = self.count + 1, self.outages + (not answered)
        self.answered, self.reason = answered, reason

    def next_wait(self) -> float:
        """Return how many seconds to wait before the next attempt."""
        if self.answered:
            seconds = FIRST_WAIT * 2 ** (self.count - self.outages - 1)
        else:
            seconds = FIRST_OUTAGE_WAIT * 2 ** (self.outages - 1)
        return random.uniform(0.5, 1.0) * min(LONGEST_WAIT, seconds)


@dataclass
class Dialogue:
    """Asks about documents; may be used by several threads."""

    config: ModelServerConfig
    client: Client
    allowance: Allowance
    pause: Pause
    form: AnswerFormat

    def ask(self, identity: str, text: str) -> Answer:
        """Return the answer about a document, or its failure. text: what is sent of it. Raises SpentError,
        StoppedError, ModelServerError, and TaskError if the server does not answer at all.
        """
        body, tries = request_body(self.config, text), _Tries()
        for attempt in range(self.config.attempts):
            if attempt:
                self.pause.wait(tries.next_wait())
            if (found := self._try(identity, body, tries)) is not None:
                return found
        if not tries.answered:
            self._require_server(tries.reason)
            if (found := self._try(identity, body, tries)) is not None:
                return found
        return self._failed(identity, f"{tries.reason} (after {counted(tries.count, 'attempt')})")

    def _try(self, identity: str, body: bytes, tries: _Tries) -> Answer | None:
        """Make an attempt. Return the answer, or the failure of a document that the server refuses; None if the attempt
        has failed, which `tries` then says.
        """
        try:
            reply = self._send(body)
            self.form.parse(reply.content)
            return Answer(identity, reply.content)
        except (AnswerError, BadAnswerError) as error:
            tries.add(str(error), answered=True)
        except PassingError as error:
            tries.add(str(error), answered=False)
            self.pause.wait(error.after)
        except RefusedDocumentError as error:
            return self._failed(identity, str(error))
        return None

    def _failed(self, identity: str, reason: str) -> Answer:
        return Answer(identity, failure=reason, attempts=self.config.attempts)

    def _send(self, body: bytes) -> Reply:
        """Send a request, again if the server asks to come back later."""
        for _ in range(MOST_BUSY):
            self._wait_for_turn()
            try:
                reply = self.client.ask(body)
            except PassingError as error:
                if not error.busy:
                    raise
                self.pause.extend(error.after or random.uniform(0.5, 1.0) * 2 * FIRST_WAIT)
            except BadAnswerError as error:
                self.allowance.settle(error.reply.input_tokens, error.reply.output_tokens)
                raise
            else:
                self.allowance.settle(reply.input_tokens, reply.output_tokens)
                return reply
        raise TaskError(
            f"the model server {self.config.host} has put off a request {MOST_BUSY} times in a row; lower "
            "`concurrency` or `requests_per_minute`, and run again"
        )

    def _wait_for_turn(self) -> None:
        """Take a request from the allowance, and wait until it may be sent."""
        moment = self.allowance.take()
        try:
            self.pause.wait(max(0.0, moment - time.time()) if moment else 0.0)
        except StoppedError:
            self.allowance.give_back()
            raise

    def _require_server(self, reason: str) -> None:
        """Raise TaskError unless the server answers a request with a fixed text."""
        try:
            self._send(request_body(self.config, PROBE))
        except PassingError as error:
            raise TaskError(
                f"the model server {self.config.host} does not answer ({reason}); documents stay open: start the "
                "server, and run again"
            ) from error
        except (BadAnswerError, RefusedDocumentError):
            pass  # it answers
