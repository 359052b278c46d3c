"""Asks a model server about one document until it gives a valid answer or the attempts are used up.

Every request that fails or whose answer is invalid is an attempt, except if the server asks to come back later (for
example HTTP 429, or 503 with Retry-After): then the request is repeated, at most MOST_BUSY times in a row. Between
attempts, the time to wait doubles and is random, so that many clients do not come back at the same moment.

If no attempt has brought any answer, either the server is down or this document makes it fail. A request with a fixed
text shows which: if that is answered, the document has failed; otherwise, the task ends with an error, and the document
stays open. So the fate of a document does not depend on other documents.
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
        body, answered, reason = request_body(self.config, text), False, ""
        for attempt in range(self.config.attempts):
            if attempt:
                self.pause.wait(random.uniform(0.5, 1.0) * min(LONGEST_WAIT, FIRST_WAIT * 2 ** (attempt - 1)))
            try:
                reply = self._send(body)
                self.form.parse(reply.content)
                return Answer(identity, reply.content)
            except (AnswerError, BadAnswerError) as error:
                answered, reason = True, str(error)
            except PassingError as error:
                self.pause.wait(error.after)
                reason = str(error)
            except RefusedDocumentError as error:
                return self._failed(identity, str(error))
        if not answered:
            self._require_server(reason)
        return self._failed(identity, f"{reason} (after {counted(self.config.attempts, 'attempt')})")

    def _failed(self, identity: str, reason: str) -> Answer:
        return Answer(identity, failure=reason, attempts=self.config.attempts)

    def _send(self, body: bytes) -> Reply:
        """Send a request, again if the server asks to come back later."""
        for _ in range(MOST_BUSY):
            moment = self.allowance.take()
            self.pause.wait(max(0.0, moment - time.time()) if moment else 0.0)
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
