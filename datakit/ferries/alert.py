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
from collections.abc import Callable, Sequence
from http.client import HTTPException, HTTPMessage
from typing import IO
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from datakit.ferries import history
from datakit.ferries.record import Failure, Record
from datakit.ferries.status import KILLED

Say = Callable[[str], None]
WEBHOOK_VARIABLE = "DATAKIT_FERRY_WEBHOOK"
REMEMBERED = 30
TIMEOUT_SECONDS = 20.0
MOST_CAUSES = 5  # listed in one alert


def new_failures(record: Record, records: Sequence[Record]) -> list[Failure]:
    """Return the failures of a record about which no run of the same ferry has sent an alert, neither one of the
    REMEMBERED runs before it nor a later one.
    """
    same = [one for one in records if one.ferry == record.ferry]
    place = next((number for number, one in enumerate(same) if one.nonce == record.nonce), len(same))
    recent = [one for one in same[max(0, place - REMEMBERED) :] if one.nonce != record.nonce]
    sent = {_cause(failure) for one in recent for failure in one.alerted}
    return [failure for failure in record.failures if _cause(failure) not in sent]


def pending(records: Sequence[Record]) -> list[Record]:
    """Return the scheduled runs that were killed and could not alert about it, among the last REMEMBERED runs of each
    ferry. Whoever settled them, such as `datakit ferry history`, may not have had the webhook, or could not reach it.
    """
    found = []
    for ferry in dict.fromkeys(one.ferry for one in records):
        last = [one for one in records if one.ferry == ferry][-REMEMBERED:]
        found += [one for one in last if one.scheduled and one.outcome == KILLED and not one.alerted]
    return [one for one in found if new_failures(one, records)]


def _cause(failure: Failure) -> tuple[str, str]:
    return failure.stage, failure.cause


def settle(parent: str, scheduled: bool, say: Say) -> None:
    """Note which ferries were killed, and send alerts about them. A scheduled run also sends those that an earlier
    command could not send.
    """
    settled = history.settle(parent)
    for killed in settled:
        say(f"{killed.ferry} {killed.nonce[:12]} was killed in stage {killed.stage}; this is now in the history")
    found, new = history.read_history(parent).records, {killed.nonce for killed in settled}
    if not any(scheduled or killed.nonce in new for killed in pending(found)):
        return
    with history.settling(parent):  # another run that starts now sends none of them again
        for killed in pending(history.read_history(parent).records):
            if (scheduled or killed.nonce in new) and (alerted := alert(parent, killed, say)) is not killed:
                history.append(parent, alerted)  # the later line of a run counts


def alert(parent: str, record: Record, say: Say) -> Record:
    """Send an alert if a scheduled ferry did not pass, and return the record with what was sent."""
    if not record.scheduled or record.outcome == "passed":
        return record
    earlier = history.read_history(parent).records
    new = new_failures(record, earlier)
    if not new:
        say("no alert: a recent run has sent one for the same cause")
        return record
    rates = history.summaries([*(one for one in earlier if one.nonce != record.nonce), record])
    rate = next(str(one) for one in rates if one.ferry == record.ferry)
    problem = send(payload(record, new, rate))
    if problem:
        say(f"warning: no alert was sent: {problem}")
        return record
    say("an alert was sent")
    return replace(record, alerted=new)


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
