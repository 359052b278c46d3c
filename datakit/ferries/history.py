"""Reads and appends the history of all ferries of one parent folder: `ferry_history.jsonl`, one JSON object per line.

A ferry appends a line when it starts and its record when it ends. A line without its record belongs to a ferry that is
still running or was killed; `settle` decides which, and appends the record of a killed one. Of several records of one
run, the last counts. No line is ever changed, so a process that is killed while it writes can only damage the last
line. Lines that cannot be read are skipped and counted.

On a disk, lines are appended under a lock. An object store cannot append, so the file is read and written again. If two
ferries write at the same moment, the line of one may be lost. A ferry whose record was lost is later reported as
killed.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version

import msgspec

from datakit.errors import NotFoundError
from datakit.ferries.machine import this_machine
from datakit.ferries.record import Failure, Record
from datakit.ferries.status import KILLED, RUNNING, Started, Status, is_dead, read_status, write_status
from datakit.storage import atomic, urls
from datakit.storage.io_errors import storage_errors
from datakit.storage.json_data import decode_errors

FILE_NAME = "ferry_history.jsonl"
LOCK_NAME = "ferry_history.lock"  # held while a process records killed ferries, and while it sends alerts about them
SHOWN = 30  # the pass rate is that of the last SHOWN runs
_decoder = msgspec.json.Decoder(Record | Started)


@dataclass(frozen=True)
class History:
    """All records (oldest first), the ferries without a record, and the number of lines that cannot be read."""

    records: list[Record]
    open: list[Started]
    unreadable: int


@dataclass(frozen=True)
class Summary:
    """The last runs of one ferry, at most SHOWN. newest: the last one. without_baseline: the number of runs in which
    nothing was wrong, but which had no earlier run to be compared with; they have not passed.
    """

    ferry: str
    runs: int
    passed: int
    newest: Record
    without_baseline: int = 0

    def __str__(self) -> str:
        alone = f", {self.without_baseline} had no baseline" if self.without_baseline else ""
        return f"{self.passed} of the last {self.runs} runs passed{alone}"


def read_history(parent: str) -> History:
    """Read the history in a folder; it is empty if there is no file."""
    records: dict[str, Record] = {}
    begun: dict[str, Started] = {}
    unreadable = 0
    for line in _read(parent).splitlines():
        try:
            with decode_errors():
                found = _decoder.decode(line)
        except msgspec.DecodeError:
            unreadable += bool(line.strip())
            continue
        if isinstance(found, Started):
            begun[found.nonce] = found
        else:
            records[found.nonce] = found
    return History(list(records.values()), [line for nonce, line in begun.items() if nonce not in records], unreadable)


def _url(parent: str) -> str:
    return urls.join(parent, FILE_NAME)


def _read(parent: str) -> bytes:
    try:
        return urls.read_bytes(_url(parent))
    except NotFoundError:
        return b""


def append(parent: str, line: Record | Started) -> None:
    """Append a line to the history. Raises StorageError."""
    data = msgspec.json.encode(line) + b"\n"
    url = _url(parent)
    if not urls.is_local(url):
        before = _read(parent)
        atomic.replace_bytes(before + (b"\n" if before and not before.endswith(b"\n") else b"") + data, url)
        return
    with storage_errors(url), open(urls.local_path(url), "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            data = data if file.read(1) == b"\n" else b"\n" + data  # the last write was cut off
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def settle(parent: str) -> list[Record]:
    """Find ferries that were killed, note this in their status and in the history, and return their new records."""
    dead = [line for line in read_history(parent).open if is_dead(line)]
    if not dead:
        return []
    with settling(parent):
        # A ferry that has ended meanwhile wrote its record before it released its lock, so it is not open any longer.
        still_open = {line.nonce for line in read_history(parent).open}
        found = [_killed(line) for line in dead if line.nonce in still_open]
        for record in found:
            append(parent, record)
    return found


@contextmanager
def settling(parent: str) -> Iterator[None]:
    """Let only one process at a time decide which ferries were killed, or send alerts about them. An object store has
    no locks, so there several processes may do so at once.
    """
    if not urls.is_local(parent):
        yield
        return
    url = urls.join(parent, LOCK_NAME)
    with storage_errors(url):
        file = open(urls.local_path(url), "ab")  # noqa: SIM115 - errors of the caller's block are not the lock's
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _killed(line: Started) -> Record:
    status = read_status(line.root)
    stage = status.stage if status else "start"
    if status and status.outcome == RUNNING and status.nonce == line.nonce:
        ended = Status(
            status.ferry, status.nonce, status.root, status.started, stage, KILLED, time.time(), [f"{stage}: {KILLED}"]
        )
        write_status(ended)
    return Record(
        ferry=line.ferry, nonce=line.nonce, root=urls.name(line.root), started=line.started, ended=time.time(),
        outcome=KILLED, stage=stage, scheduled=line.scheduled, scale=line.scale, machine=this_machine(),
        version=version("datakit"), failures=[Failure(stage, "the ferry was killed")],
    )  # fmt: skip


def summaries(records: Sequence[Record]) -> list[Summary]:
    """Return the pass rate of each ferry, in the order in which the ferries first ran."""
    found = []
    for name in dict.fromkeys(record.ferry for record in records):
        last = [record for record in records if record.ferry == name][-SHOWN:]
        passed, alone = (sum(record.outcome == one for record in last) for one in ("passed", "no baseline"))
        found.append(Summary(name, len(last), passed, last[-1], alone))
    return found
