"""Sends an alert to a webhook if a scheduled ferry did not pass, in the format that Slack's incoming webhooks expect.

The URL of the webhook is a secret: whoever has it can post. It comes from the environment only, and neither a message
nor a record contains it. The alert names the ferry, the stage, the cause in fixed words, and figures. It contains no
text of a document and no path.

A cause is not sent again as long as one of the last REMEMBERED runs of the ferry has sent it. A failure that comes and
goes therefore causes a single alert. If it comes back after more than REMEMBERED runs, it causes another.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException, HTTPMessage
from typing import IO
from urllib.parse import urlsplit

import msgspec

from datakit.ferries.record import Failure, Record
from datakit.ferries.status import KILLED

WEBHOOK_VARIABLE = "DATAKIT_FERRY_WEBHOOK"
REMEMBERED = 30
TIMEOUT_SECONDS = 20.0
MOST_CAUSES = 5  # listed in one alert


def new_failures(record: Record, history: Sequence[Record]) -> list[Failure]:
    """Return the failures of a record about which no recent run of the same ferry has sent an alert."""
    recent = [one for one in history if one.ferry == record.ferry and one.nonce != record.nonce][-REMEMBERED:]
    sent = {_cause(failure) for one in recent for failure in one.alerted}
    return [failure for failure in record.failures if _cause(failure) not in sent]


def pending(history: Sequence[Record]) -> list[Record]:
    """Return the killed scheduled runs about which no alert has been sent, because they were found only after the last
    scheduled run had started, for example by `datakit ferry history`.
    """
    last = max((one.started for one in history if one.scheduled and one.outcome != KILLED), default=0.0)
    killed = (one for one in history if one.scheduled and one.outcome == KILLED and not one.alerted)
    return [one for one in killed if one.ended >= last][-REMEMBERED:]


def _cause(failure: Failure) -> tuple[str, str]:
    return failure.stage, failure.cause


def payload(record: Record, failures: Sequence[Failure], rate: str) -> bytes:
    """Return the body of the alert."""
    lines = [f"datakit ferry {record.ferry}: {record.outcome}", *(f"- {failure}" for failure in failures[:MOST_CAUSES])]
    if len(failures) > MOST_CAUSES:
        lines.append(f"- and {len(failures) - MOST_CAUSES} more")
    lines.append(f"run {record.nonce[:12]}, datakit {record.version}, {record.machine}; {rate}")
    return msgspec.json.encode({"text": "\n".join(lines)})


def send(body: bytes) -> str:
    """Post the alert to the webhook. Return why it could not be sent, or "" if it was."""
    url = os.environ.get(WEBHOOK_VARIABLE, "").strip()
    if not url:
        return f"{WEBHOOK_VARIABLE} is not set"
    try:
        if urlsplit(url).scheme not in ("http", "https"):
            return f"{WEBHOOK_VARIABLE} is not an http or https URL"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        return f"the webhook answered with status {error.code}"
    except (OSError, ValueError, HTTPException) as error:  # their messages may quote the URL
        return f"the webhook cannot be reached: {type(error).__name__}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the alert to another address, as a GET without its body."""

    def redirect_request(  # noqa: PLR0917 - the signature of the base class
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None
