"""Checks a root by writing, reading, listing and deleting a file; tests a store's conditional PUT and clock skew."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path

from datakit.doctor.finding import Finding, State, disk_usage, nearest_existing, try_action
from datakit.errors import DatakitError, DivergentOutputError
from datakit.storage import atomic, removal, urls

SKEW_SECONDS, REFUSED_SECONDS = 60.0, 600.0  # skew above which to warn, or to report a problem; S3 accepts 15 minutes
CONNECT_SECONDS = 5.0
CLOCKS = {"s3": "https://s3.amazonaws.com", "gs": "https://storage.googleapis.com", "hf": "https://huggingface.co"}


def check_local_root(root: str) -> Iterator[Finding]:
    """Check a local root, which need not exist yet."""
    folder = nearest_existing(Path(root))
    remedy = "choose another --root, or get permission to write there"
    if not folder.is_dir():
        yield Finding("root", State.PROBLEM, f"{folder} is not a directory", remedy)
        return
    yield try_action("root", f"{folder}: file written, read and deleted", remedy, lambda: _write_and_read(str(folder)))
    remedy = "free some space, or choose another --root; `datakit gc` lists what can be deleted"
    yield disk_usage("root's disk", str(folder), remedy)


def check_store(root: str) -> Iterator[Finding]:
    """Check a root in an object store."""
    folder = f"{root}/.probe"
    remedy = "check AWS_ENDPOINT_URL, the credentials, the bucket's name, and permissions to get, put, list and delete"
    found = try_action("root", f"{root}: file put, read, listed and deleted", remedy, lambda: _write_and_read(folder))
    yield found
    if found.state is State.OK:
        yield _conditional_put(folder)
    yield _clock(urls.protocol(root))


def _write_and_read(folder: str) -> None:
    data = uuid.uuid4().bytes
    with atomic.temporary_file(folder, "doctor", data) as url:
        if urls.read_bytes(url) != data:
            raise OSError(f"{url} does not contain what was just written")
        urls.listing(folder)


def _conditional_put(folder: str) -> Finding:
    """Check that the store refuses a second file with the same name but different content."""
    url = urls.join(folder, atomic.temporary_name("doctor"))
    try:
        atomic.commit_bytes(b"first", url)
        atomic.commit_bytes(b"second", url)
    except DivergentOutputError:
        return Finding("conditional put", State.OK, "existing names are refused")
    except DatakitError as error:
        return Finding("conditional put", State.PROBLEM, str(error), "the store must allow If-None-Match on PUT")
    finally:
        removal.remove(url)
    text = "the store ignores If-None-Match and overwrites existing files: two drivers could corrupt each other's work"
    return Finding("conditional put", State.PROBLEM, text, "upgrade the store, or use one that has conditional writes")


def _clock(protocol: str) -> Finding:
    """Compare this machine's clock with the `Date` header of a response from the store."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") if protocol == "s3" else None
    endpoint = endpoint or CLOCKS.get(protocol)
    if endpoint is None:
        return _not_compared(f"no endpoint is known for {protocol}://")
    try:
        date = _server_date(endpoint)
    except OSError as error:
        return _not_compared(f"{endpoint} does not answer ({error})")
    if date is None:
        return _not_compared(f"{endpoint} sends no Date header")
    skew = time.time() - parsedate_to_datetime(date).timestamp()
    remedy = "set the clock (chrony, ntpd): stores refuse requests if it is more than 15 minutes off"
    state = State.PROBLEM if abs(skew) > REFUSED_SECONDS else State.WARNING if abs(skew) > SKEW_SECONDS else State.OK
    return Finding("clock", state, f"{skew:+.0f} s against {endpoint}", remedy if state is not State.OK else "")


def _not_compared(reason: str) -> Finding:
    return Finding("clock", State.WARNING, f"not compared: {reason}", "check the clock by hand")


def _server_date(endpoint: str) -> str | None:
    request = urllib.request.Request(endpoint, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_SECONDS) as answer:
            return answer.headers["Date"]
    except urllib.error.HTTPError as error:  # error responses have a date, too
        return error.headers["Date"]
