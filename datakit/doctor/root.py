"""`datakit doctor` on a root: written, read, listed and deleted for real; the store's conditional PUT; its clock."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path

from datakit.doctor.finding import Finding, State, attempt, disk, standing
from datakit.errors import DatakitError, DivergentOutputError
from datakit.storage import atomic, urls

SKEW_SECONDS, REFUSED_SECONDS = 60.0, 600.0  # S3 refuses requests that are 15 minutes off
CONNECT_SECONDS = 5.0
CLOCKS = {"s3": "https://s3.amazonaws.com", "gs": "https://storage.googleapis.com", "hf": "https://huggingface.co"}


def local_root(root: str) -> Iterator[Finding]:
    place = standing(Path(root))
    remedy = "choose another --root, or give yourself the right to write there"
    if not place.is_dir():
        yield Finding("root", State.PROBLEM, f"{place} is not a directory", remedy)
        return
    yield attempt("root", f"{place}: written, read and deleted", remedy, lambda: _write_and_read(str(place)))
    yield disk("root's disk", str(place), "free some, or choose another --root; `datakit gc` lists what can go")


def store(root: str) -> Iterator[Finding]:
    remedy = "check AWS_ENDPOINT_URL, the credentials and the bucket's name, and that they allow get, put, list, delete"
    found = attempt("root", f"{root}: put, read, listed and deleted", remedy, lambda: _write_and_read(f"{root}/.probe"))
    yield found
    if found.state is State.OK:
        yield _conditional(f"{root}/.probe")
    yield _clock(urls.protocol(root))


def _write_and_read(folder: str) -> None:
    url, data = urls.join(folder, atomic.temporary_name("doctor")), uuid.uuid4().bytes
    atomic.commit_bytes(data, url)
    try:
        if urls.read_bytes(url) != data:
            raise OSError(f"{url} reads as something else than what was written there")
        urls.listing(folder)
    finally:
        urls.remove(url)


def _conditional(folder: str) -> Finding:
    """The second of two different files under one name must be refused."""
    url = urls.join(folder, atomic.temporary_name("doctor"))
    try:
        atomic.commit_bytes(b"first", url)
        atomic.commit_bytes(b"second", url)
    except DivergentOutputError:
        return Finding("conditional put", State.OK, "a name that is taken is refused")
    except DatakitError as error:
        return Finding("conditional put", State.PROBLEM, str(error), "the store must allow If-None-Match on PUT")
    finally:
        urls.remove(url)
    text = "the store overwrites what it should refuse (If-None-Match is ignored): two drivers could harm each other"
    return Finding("conditional put", State.PROBLEM, text, "use a store, or a version of it, with conditional writes")


def _clock(protocol: str) -> Finding:
    """This machine's clock against the store's `Date`."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") if protocol == "s3" else None
    endpoint = endpoint or CLOCKS.get(protocol)
    if endpoint is None:
        return Finding("clock", State.WARNING, f"not compared: no address of {protocol}:// is known", "compare by hand")
    try:
        date = _date_of(endpoint)
    except OSError as error:
        return Finding("clock", State.WARNING, f"not compared: {endpoint} does not answer ({error})", "compare by hand")
    if date is None:
        return Finding("clock", State.WARNING, f"not compared: {endpoint} sends no Date", "compare by hand")
    skew = time.time() - parsedate_to_datetime(date).timestamp()
    text, remedy = (
        f"{skew:+.0f} s against {endpoint}",
        "set the clock (chrony, ntpd): stores refuse requests 15 min off",
    )
    state = State.PROBLEM if abs(skew) > REFUSED_SECONDS else State.WARNING if abs(skew) > SKEW_SECONDS else State.OK
    return Finding("clock", state, text, remedy if state is not State.OK else "")


def _date_of(endpoint: str) -> str | None:
    request = urllib.request.Request(endpoint, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_SECONDS) as answer:
            return answer.headers["Date"]
    except urllib.error.HTTPError as error:  # an answer, too
        return error.headers["Date"]
