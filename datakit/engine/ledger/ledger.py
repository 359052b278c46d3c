"""Records a step's attempts as lines of JSON, decides when the lines are flushed, and computes the digests of tasks.

The ledger is stored next to the step's outputs. An output is created only if it is absent, so a task may be repeated
and the ledger need not be made durable after every task. On a disk, the ledger is flushed every second; in an object
store, a new object is written after 500 lines or 10 s, whichever comes first. If the end of the ledger is lost, the
tasks recorded there are repeated, and their outputs turn out equal to the existing ones. Each driver writes its own
files, called segments. Different versions of datakit may share a ledger: lines of unknown form are skipped and counted.
Each attempt appends one line. A resumed step lists the segments once and reads each of them once (from an object store,
several in parallel).
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import xxhash

from datakit.engine.executor import Cause, Outcome
from datakit.engine.ledger.packed_results import pack
from datakit.engine.task import Phase, Task, TaskResult, encode
from datakit.engine.versions import versions
from datakit.errors import CorruptError, counted
from datakit.storage import atomic, locks, urls
from datakit.storage.json_data import decode, decode_errors

FOLDER = "ledger"
SYNC_SECONDS = 1.0  # between two flushes to a disk; tasks that end after the last flush before a crash are repeated
OBJECT_LINES = 500
OBJECT_SECONDS = 10.0
FIRST_SEGMENT = "-00000.jsonl"
READ_AT_ONCE = 32  # number of segments fetched in parallel from an object store; each has about 500 lines


class PhaseLine(msgspec.Struct, tag="phase", tag_field="kind", frozen=True):
    """The start of a phase: the keys of its tasks, in order, and the number of input bytes of each task."""

    phase: str
    keys: list[str]
    input_bytes: list[int]
    time: float


class AttemptLine(msgspec.Struct, tag="attempt", tag_field="kind", frozen=True, omit_defaults=True):
    """The end of an attempt. `digest` covers all inputs of the task (see Digests), so that the result is reused only
    for an identical task. A line with the cause DONE but no result is from an attempt at part of a task during a
    bisection (`engine/scheduler/bisect_input.py`). For `peak_memory`, `peak_resident` and `written`, see
    Outcome.
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
    written: int = 0
    time: float = 0.0


class DriverLine(msgspec.Struct, tag="driver", tag_field="kind", frozen=True):
    """The start of a driver, with the versions of its libraries. A manifest never contains these versions.

    version: the stage's format version; None in ledgers that earlier versions of datakit wrote. code: the hash of the
    file with the user's own code that the step runs (Step.code).
    """

    driver: str
    time: float
    versions: dict[str, str]
    version: int | None = None
    code: str = ""


class DroppedLine(msgspec.Struct, tag="dropped", tag_field="kind", frozen=True):
    """Phase `by` is complete, and no later task reads the files in these folders below `exchange/`, so the driver
    removes them. The results of the tasks that wrote the files stay valid (`scheduler/drops.py`).
    """

    by: str
    folders: list[str]
    time: float


class UnknownLine(msgspec.Struct, frozen=True):
    """A line that this version does not understand, because a newer version wrote it. It is skipped: at worst, a task
    that it records is repeated and writes the same files.
    """

    kind: str
    time: float = 0.0


SHARED_FIELDS = tuple(name for name in AttemptLine.__struct_fields__ if name in Outcome.__dataclass_fields__)
Line = PhaseLine | AttemptLine | DriverLine | DroppedLine
AnyLine = Line | UnknownLine


class Digests:
    """Hashes a phase's tasks: each digest (32 hex digits) covers the function, arguments, shared data and `before`.
    `before` is a hash of the results of earlier phases: a phase may read files that earlier phases wrote, and these
    files keep their names even if the earlier phases are rerun and write different content. Digests are computed on
    demand, since 100,000 of them would take 13 MB.
    """

    def __init__(self, phase: Phase, before: str) -> None:
        # The shared data may take 1 MB, so it is hashed only once.
        self._shared = xxhash.xxh3_128_hexdigest(encode(phase.shared)) + before

    def of(self, task: Task) -> str:
        """Return the digest of a task. During a bisection, a part of a task has a digest of its own."""
        return xxhash.xxh3_128_hexdigest(encode([task.function, task.arguments, self._shared]))


def driver_name() -> str:
    """Return a unique name for this driver; such names sort in the order in which drivers start."""
    now = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
    return f"{stamp}{int(now % 1 * 1000):03d}Z-{os.getpid()}-{uuid.uuid4().hex[:6]}"


@dataclass
class LedgerWriter:
    """Appends lines to this driver's segments below `<step>/ledger/`."""

    directory: str
    driver: str
    version: int | None = None  # the stage's format version
    code: str = ""
    _pending: list[bytes] = field(default_factory=list)
    _segment: int = 0
    _flushed: float = field(default_factory=time.monotonic)
    # On a disk: the open segment. It is locked, which shows `datakit gc` that the driver is alive.
    _lock: int | None = None

    def owns(self, segment: str) -> bool:
        """Return True if this driver writes the segment with this URL."""
        return urls.name(segment).startswith(f"{self.driver}-")

    def start(self) -> None:
        """Append the line that records the start of this driver. On a disk, also lock the driver's segment."""
        if urls.is_local(self.directory):
            self._open()
        self.append(DriverLine(self.driver, time.time(), versions(), self.version, self.code))

    def append(self, line: Line) -> None:
        """Add a line; it is written to storage by `flush`, or by `tick` once a flush is due."""
        self._pending.append(msgspec.json.encode(line) + b"\n")
        self.tick()

    def tick(self) -> None:
        """Flush the waiting lines if a flush is due. Called regularly while tasks run."""
        waited, local = time.monotonic() - self._flushed, urls.is_local(self.directory)
        if waited >= (SYNC_SECONDS if local else OBJECT_SECONDS) or (not local and len(self._pending) >= OBJECT_LINES):
            self.flush()

    def flush(self) -> None:
        """Make all lines appended so far durable."""
        data, self._pending, self._flushed = b"".join(self._pending), [], time.monotonic()
        if not data:
            return
        url = urls.join(self.directory, FOLDER, f"{self.driver}-{self._segment:05d}.jsonl")
        if not urls.is_local(url):
            atomic.commit_bytes(data, url)
            self._segment += 1
            return
        segment = self._open() if self._lock is None else self._lock
        with atomic.storage_errors(url):
            _append(segment, data)

    def _open(self) -> int:
        path = Path(urls.local_path(urls.join(self.directory, FOLDER, self.driver + FIRST_SEGMENT)))
        with atomic.storage_errors(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            self._lock = locks.share(path)
        return self._lock

    def close(self) -> None:
        """Flush all lines, close the segment and release its lock, even if the lines cannot be written."""
        try:
            self.flush()
        finally:
            if self._lock is not None:
                locks.release(self._lock)
                self._lock = None


def _append(segment: int, data: bytes) -> None:
    """Append lines to an open file, and sync it. If that fails, no part of them remains, because only the last line of
    a segment may be incomplete.
    """
    end, left = os.lseek(segment, 0, os.SEEK_END), memoryview(data)
    try:
        while left:
            left = left[os.write(segment, left) :]
    except BaseException:  # a full disk may accept only a part; a signal may come between two writes
        os.ftruncate(segment, end)
        raise
    os.fsync(segment)


def attempt_line(outcome: Outcome, digest: str) -> AttemptLine:
    """Convert an outcome to its ledger line."""
    shared = {name: getattr(outcome, name) for name in SHARED_FIELDS}
    return AttemptLine(digest=digest, attempt=outcome.number, time=time.time(), **shared)


def segments_of(directory: str) -> dict[str, int]:
    """Return the sizes of a step's segments by their URLs, oldest segment first."""
    return {segment.url: segment.size for segment in urls.listing(urls.join(directory, FOLDER))}


def read_ledger(directory: str) -> Iterator[AnyLine]:
    """Yield every line in a step's segments, oldest segment first. An incomplete last line, which a killed driver may
    leave in its segment, is ignored. Raises CorruptError for any other line that is not a JSON object with a kind.
    """
    return read_segments(list(segments_of(directory)))


def read_segments(segments: Sequence[str]) -> Iterator[AnyLine]:
    """Yield every line in these segments, as `read_ledger` does."""
    decoder, others = msgspec.json.Decoder(Line), msgspec.json.Decoder(UnknownLine)
    for segment, data in zip(segments, urls.fetch_ahead(urls.read_bytes, segments, READ_AT_ONCE), strict=True):
        lines = data.split(b"\n")
        for number, text in enumerate(lines[:-1]):
            try:
                yield _decoded(text, decoder, others)
            except msgspec.DecodeError as error:
                place = f"{segment}, line {number + 1}"
                raise CorruptError(f"{place}: {error}; remove the file to redo its tasks") from error


def _decoded(text: bytes, decoder: msgspec.json.Decoder[Line], others: msgspec.json.Decoder[UnknownLine]) -> AnyLine:
    with decode_errors():
        try:
            return decoder.decode(text)
        except msgspec.ValidationError:  # valid JSON that this version does not understand
            return others.decode(text)


def skipped_note(count: int, directory: str) -> str:
    """Return the message for the user about unknown lines in a step's ledger."""
    return f"{counted(count, 'line')} in {urls.join(directory, FOLDER)} skipped: a newer version of datakit wrote them"


def drivers(directory: str) -> Iterator[DriverLine]:
    """Yield the lines that record the starts of a step's drivers, oldest first. Reads only the first line of each
    driver's first segment, and skips a line that its driver did not finish writing.
    """
    for segment in urls.listing(urls.join(directory, FOLDER)):
        if segment.path.endswith(FIRST_SEGMENT):
            with urls.open_read(segment.url) as file, contextlib.suppress(msgspec.DecodeError):
                yield decode(file.readline(), DriverLine)


def finished(lines: Iterable[Line]) -> dict[str, bytes]:
    """Return the packed results of finished tasks, keyed by `task_id`. A task that has left records for a later run is
    not finished.
    """
    done: dict[str, bytes] = {}
    for line in lines:
        if not isinstance(line, AttemptLine) or line.cause is not Cause.DONE:
            continue
        if line.result is not None and not line.result.open:
            done.setdefault(task_id(line.phase, line.key, line.digest), pack(line.result))
    return done


def task_id(phase: str, key: str, digest: str) -> str:
    """Return one string that identifies a task of a step; as tuples of strings, 100,000 ids would take 20 MB more."""
    return f"{phase}\n{key}\n{digest}"
