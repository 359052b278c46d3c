"""Orders for the proxy in front of a bucket (`proxy.py`): which requests they concern, and what becomes of the
answers. Those that change listings know both forms, the XML of S3 and the JSON of Google Cloud Storage.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support.buckets.proxy import Answer, Change, Matches

CONTENTS = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)


def lists(page: int = 0) -> Matches:
    """Match requests for a page of a listing; 0: for any page."""
    return lambda seen: seen.kind == "list" and page in (0, seen.page)


def reads(key: str = "") -> Matches:
    """Match requests for the bytes of an object whose key ends with `key`."""
    return lambda seen: seen.kind == "read" and seen.key.endswith(key)


def refused(status: int, code: str = "SlowDown") -> Change:
    """Answer with an error, in the form of both stores."""
    xml = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>too many</Message></Error>"

    def change(answer: Answer) -> Answer:
        is_json = "json" in answer.headers.get("Content-Type", "") or "x-goog-hash" in map(str.lower, answer.headers)
        body = json.dumps({"error": {"code": status, "message": code}}) if is_json else xml
        return Answer(status, {"Content-Type": "application/json" if is_json else "application/xml"}, body.encode())

    return change


def cut_after(count: int) -> Change:
    """Close the connection after `count` bytes of the body."""
    return lambda answer: replace(answer, cut=count, length=len(answer.body))


def held_after(count: int, event: threading.Event) -> Change:
    """Send `count` bytes of the body, and nothing more until `event` is set; then close the connection."""
    return lambda answer: replace(answer, cut=count, length=len(answer.body), held=event)


def stating_length(change_by: int) -> Change:
    """State a Content-Length that is wrong by so many bytes."""
    return lambda answer: replace(answer, length=len(answer.body) + change_by)


def truncated(share: float) -> Change:
    """Send only the first part of the body, as if it were all."""
    return lambda answer: replace(answer, body=answer.body[: int(len(answer.body) * share)], length=None)


def flipped(position: int) -> Change:
    """Change a bit of the body."""

    def change(answer: Answer) -> Answer:
        body = bytearray(answer.body)
        body[position] ^= 1
        return replace(answer, body=bytes(body))

    return change


def old(answer: Answer) -> Change:
    """Send an answer of earlier, as an outdated cache does."""
    return lambda now: answer


def _on_objects(
    change_json: Callable[[list[Any]], list[Any]], change_xml: Callable[[list[bytes]], list[bytes]]
) -> Change:
    def change(answer: Answer) -> Answer:
        if b"<ListBucketResult" not in answer.body:
            page = json.loads(answer.body)
            return replace(answer, body=json.dumps({**page, "items": change_json(page["items"])}).encode())
        found = CONTENTS.findall(answer.body)
        before, after = answer.body.split(found[0])[0], answer.body.rpartition(found[-1])[2]
        return replace(answer, body=before + b"".join(change_xml(found)) + after)

    return change


def without_object(number: int) -> Change:
    """Leave out an object of a page; the number of objects that a page of S3 states stays the same."""
    return _on_objects(
        lambda items: items[:number] + items[number + 1 :], lambda items: items[:number] + items[number + 1 :]
    )


def without_object_and_count(number: int) -> Change:
    """Leave out an object of a page, and state a number of objects that agrees with the rest."""
    without = without_object(number)

    def change(answer: Answer) -> Answer:
        body = re.sub(rb"(?<=<KeyCount>)\d+", lambda found: b"%d" % (int(found[0]) - 1), without(answer).body)
        return replace(answer, body=body)

    return change


def with_object_twice(number: int) -> Change:
    """List an object in place of the one that follows it."""
    return _on_objects(
        lambda items: [*items[: number + 1], items[number], *items[number + 2 :]],
        lambda items: [*items[: number + 1], items[number], *items[number + 2 :]],
    )


def with_text(old_text: str, new_text: str) -> Change:
    """Replace a text in the body."""
    return lambda answer: replace(answer, body=answer.body.replace(old_text.encode(), new_text.encode()))


def without_token() -> Change:
    """Say that another page follows, but not which; in Google Cloud Storage, these two are the same statement."""

    def change(answer: Answer) -> Answer:
        if b"<ListBucketResult" not in answer.body:
            page = json.loads(answer.body)
            page.pop("nextPageToken", None)
            return replace(answer, body=json.dumps(page).encode())
        return replace(answer, body=re.sub(rb"<NextContinuationToken>.*?</NextContinuationToken>", b"", answer.body))

    return change


def leading_back(token: str) -> Change:
    """Name a page that was sent before as the next one."""

    def change(answer: Answer) -> Answer:
        if b"<ListBucketResult" not in answer.body:
            return replace(answer, body=json.dumps(json.loads(answer.body) | {"nextPageToken": token}).encode())
        body = re.sub(rb"(?<=<NextContinuationToken>)[^<]*", token.encode(), answer.body)
        return replace(answer, body=body)

    return change
