"""Writes `ferry_run_status.json`: what a ferry is doing, or how it ended.

The file is written before the first stage, at the beginning of each stage, and at the end, even if the ferry is stopped
by a time limit or a signal. After SIGKILL or a power cut, it still says `running`. Therefore a running ferry holds a
lock on another file in its root (`storage/locks.py`). If the status is `running` but nobody holds the lock, the ferry
was killed; the next `datakit ferry run` or `datakit ferry history` then corrects the status (`history.py`). Where the
lock cannot be seen (an object store, another machine), a ferry counts as killed once its time limit has passed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from datakit.errors import NotFoundError
from datakit.retention.ferry_roots import LOCK_NAME, FerryRoot
from datakit.storage import atomic, locks, urls
from datakit.storage.json_data import decode

FILE_NAME = "ferry_run_status.json"
FORMAT = "datakit.ferrystatus/1"
RUNNING, KILLED = "running", "killed"
GRACE_SECONDS = 600.0  # after its time limit, a ferry may take this long to stop its command


class Status(msgspec.Struct, frozen=True):
    """The state of a ferry. stage: the present or last stage. outcome: running, or the outcome in its record. ended: in
    seconds since 1970, like `started`; None while it runs. causes: why it did not pass. record: the path or URL of
    the record, "" while the ferry runs and if it was killed. page: the path of the report's page, "" without one.
    """

    ferry: str
    nonce: str
    root: str
    started: float
    stage: str
    outcome: str = RUNNING
    ended: float | None = None
    causes: list[str] = []
    record: str = ""
    page: str = ""
    format: str = FORMAT


class Started(msgspec.Struct, frozen=True, tag_field="event", tag="started"):
    """A line of the history: a ferry has started. root: its URL. domain: the lock domain of its root, "" if it has no
    locks. until: when its time limit has certainly passed, in seconds since 1970.
    """

    ferry: str
    nonce: str
    root: str
    started: float
    scheduled: bool
    scale: float
    domain: str
    until: float


def started(root: FerryRoot, scheduled: bool, scale: float, timeout: float) -> Started:
    """Return the line for a ferry that starts now."""
    domain = locks.domain(urls.local_path(root.url)) if urls.is_local(root.url) else ""
    now = time.time()
    until = now + timeout + GRACE_SECONDS
    return Started(root.ferry, root.nonce, root.url, now, scheduled, scale, domain, until)


def write_status(status: Status) -> None:
    """Write a ferry's status into its root."""
    data = msgspec.json.format(msgspec.json.encode(status), indent=1) + b"\n"
    atomic.replace_bytes(data, urls.join(status.root, FILE_NAME))


def read_status(root: str) -> Status | None:
    """Return the status of the ferry in a root; None if there is none, or if it cannot be read."""
    try:
        return decode(urls.read_bytes(urls.join(root, FILE_NAME)), Status)
    except (NotFoundError, msgspec.DecodeError):
        return None


@contextmanager
def held(root: str) -> Iterator[None]:
    """Hold the lock that shows that the ferry in this root is alive."""
    if not urls.is_local(root):
        yield
        return
    _, lock = locks.create(lambda: Path(urls.local_path(root), LOCK_NAME), 0o644)
    try:
        yield
    finally:
        locks.release(lock)


def is_dead(line: Started) -> bool:
    """Return True if the ferry can no longer be running."""
    path = Path(urls.local_path(line.root), LOCK_NAME) if urls.is_local(line.root) else None
    if path is None or not path.parent.is_dir() or locks.domain(str(path.parent)) != line.domain:
        return time.time() > line.until
    return not locks.is_locked(path)
