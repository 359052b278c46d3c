"""What is done: the driver's record of every attempt, in segments of JSON lines beside the output.

Outputs are idempotent (create if absent), so the ledger need not be durable per task: it is flushed each second on a
disk, and written as one object per 500 lines or 10 s on an object store. Losing its tail only repeats those tasks,
which then find their outputs there and equal. Each driver writes segments of its own: two drivers never share a file.

Cost: one append a task; a resume reads all segments once, of a store many at once, and lists the step's directory once.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import xxhash

from datakit.engine.executor import Cause, Outcome
from datakit.engine.ledger.packed_results import pack
from datakit.engine.task import Phase, Task, TaskResult, encode
from datakit.engine.versions import versions
from datakit.errors import CorruptError
from datakit.storage import atomic, urls

FOLDER = "ledger"
SYNC_SECONDS = 1.0
OBJECT_LINES = 500
OBJECT_SECONDS = 10.0
READ_AT_ONCE = 32  # segments of 500 lines


class PhaseLine(msgspec.Struct, tag="phase", tag_field="kind", frozen=True):
    """A phase has begun: its tasks' keys in order, and how much each will read."""

    phase: str
    keys: list[str]
    input_bytes: list[int]
    time: float


class AttemptLine(msgspec.Struct, tag="attempt", tag_field="kind", frozen=True, omit_defaults=True):
    """An attempt has ended. `digest` covers the task's function and arguments: a result counts for no other task.

    One that is done without a result had only a part of a task, in search of what kills it
    (`engine/scheduler/bisect_input.py`).

    peak_memory is what counts against the budget, peak_resident all that was resident (see Outcome).
    """

    phase: str
    key: str
    digest: str
    attempt: int
    cause: Cause
    result: TaskResult | None = None
    message: str = ""
    peak_memory: int = 0
    peak_resident: int = 0
    budget: int = 0
    seconds: float = 0.0
    work_seconds: float = 0.0
    cpu_seconds: float = 0.0
    node: str = ""
    time: float = 0.0


class DriverLine(msgspec.Struct, tag="driver", tag_field="kind", frozen=True):
    """A driver has begun: what it runs on. Versions are here, never in the manifest."""

    driver: str
    time: float
    versions: dict[str, str]


KEPT = tuple(name for name in AttemptLine.__struct_fields__ if name in Outcome.__dataclass_fields__)
Line = PhaseLine | AttemptLine | DriverLine


class Digests:
    """What each task of a phase is, as 32 hex digits: its function and arguments, what all share, and `before`.

    That is what came of the phases before: this one may read what they wrote, under names that stay the same when they
    are done again and write something else. Worked out when asked for: 100,000 of them would be 13 MB of a driver.
    """

    def __init__(self, phase: Phase, before: str) -> None:
        self._shared = xxhash.xxh3_128_hexdigest(encode(phase.shared)) + before  # once: it may be a megabyte

    def of(self, task: Task) -> str:
        """Of one task, or of a half of it, which is another one."""
        return xxhash.xxh3_128_hexdigest(encode([task.function, task.arguments, self._shared]))


def driver_name() -> str:
    """A name for this run that sorts by time and that no other run has."""
    now = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
    return f"{stamp}{int(now % 1 * 1000):03d}Z-{os.getpid()}-{uuid.uuid4().hex[:6]}"


@dataclass
class LedgerWriter:
    """Appends to this driver's own segments below `<step>/ledger/`."""

    directory: str
    driver: str
    _pending: list[bytes] = field(default_factory=list)
    _segment: int = 0
    _flushed: float = field(default_factory=time.monotonic)
    _file: Any = None

    def begin(self) -> None:
        """The driver's own line."""
        self.append(DriverLine(self.driver, time.time(), versions()))

    def append(self, line: Line) -> None:
        """Add a line; it reaches the store within the module's bounds, or at `flush`."""
        self._pending.append(msgspec.json.encode(line) + b"\n")
        self.tick()

    def tick(self) -> None:
        """Flush what has waited long enough; called while tasks run, also when none ends."""
        waited = time.monotonic() - self._flushed
        if urls.is_local(self.directory):
            if waited >= SYNC_SECONDS:
                self.flush()
        elif len(self._pending) >= OBJECT_LINES or waited >= OBJECT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Make everything appended so far durable."""
        data, self._pending, self._flushed = b"".join(self._pending), [], time.monotonic()
        if not data:
            return
        url = urls.join(self.directory, FOLDER, f"{self.driver}-{self._segment:05d}.jsonl")
        if not urls.is_local(url):
            atomic.commit_bytes(data, url)
            self._segment += 1
            return
        with atomic.storage_errors(url):
            if self._file is None:
                os.makedirs(os.path.dirname(urls.local_path(url)), exist_ok=True)
                self._file = open(urls.local_path(url), "ab")  # noqa: SIM115 - closed in `close`
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None


def attempt_line(outcome: Outcome, digest: str) -> AttemptLine:
    """An outcome as the ledger keeps it."""
    kept = {name: getattr(outcome, name) for name in KEPT}
    return AttemptLine(digest=digest, attempt=outcome.number, time=time.time(), **kept)


def read_ledger(directory: str) -> Iterator[Line]:
    """Every line of every segment of a step, segment by segment in the order of their names (time).

    A driver that was killed may leave half a line at the end of its segment; that line is the tail that may be lost.
    Raises CorruptError for a broken line anywhere else.
    """
    decoder = msgspec.json.Decoder(Line)
    segments = [segment.url for segment in urls.listing(urls.join(directory, FOLDER))]
    for segment, data in zip(segments, urls.fetch_ahead(urls.read_bytes, segments, READ_AT_ONCE), strict=True):
        lines = data.split(b"\n")
        for number, text in enumerate(lines[:-1]):
            try:
                yield decoder.decode(text)
            except msgspec.DecodeError as error:
                raise CorruptError(f"{segment}, line {number + 1}: {error}; remove the file to redo it") from error


def finished(lines: Iterable[Line]) -> dict[str, bytes]:
    """The packed results of the tasks that are done, by their `place`."""
    done: dict[str, bytes] = {}
    for line in lines:
        if isinstance(line, AttemptLine) and line.cause is Cause.DONE and line.result is not None:
            done.setdefault(place(line.phase, line.key, line.digest), pack(line.result))
    return done


def place(phase: str, key: str, digest: str) -> str:
    """A task of a step, as one string: 100,000 tuples of three would be 20 MB more."""
    return f"{phase}\n{key}\n{digest}"
