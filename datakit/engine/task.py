"""Defines the plain data passed between stages and the engine: steps, phases, tasks, results and skipped records (the
lines of `quarantine/records.jsonl`).

A stage is a generator: it yields phases, one after another, receives each phase's results in task order, and returns an
Output. Tasks and results are sent between processes and machines as msgpack, so arguments must be small plain values.
Data that many tasks need goes into `Phase.shared`, which is written once and sent to each child.

    def plan(step: Step) -> Plan:
        routed = yield Phase("route", tuple(tasks))
        sorted_ = yield Phase("sort", tuple(more_tasks), shared={"runs": [...]})
        return Output(partitions=..., schema=..., counters={})
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.engine.disk_limits import DiskLimits, WriteLimit
from datakit.storage import urls
from datakit.storage.fingerprint import spelled_out
from datakit.storage.manifest import InputReference, Manifest, Partition, manifest_url

Plan = Generator["Phase", "Sequence[TaskResult]", "Output"]
# config fields (limits) that are operation parameters: they go into `Step.operations`, not into the fingerprint
TOLERANCES = ("max_quarantined", "quarantine", "max_removal", "task_memory")
TABLES = {"signatures": "dedup"}  # stage -> its table in a recipe, if that is not named after the stage
EXCHANGE_FOLDER = "exchange"  # the folder, in a step's directory, for files that tasks write for other tasks
SECRET = "secret"  # the name under which a task's function finds `Task.secret`
BATCH_HANG_SECONDS = 600.0  # for tasks that report progress every few MiB
HANG_SECONDS = 1800.0  # for other tasks: one call of the reference tokenizer may get 256 MiB and take 2 s per MB


@dataclass(frozen=True)
class StepInput:
    """A finished upstream step: its role in this stage, its directory and its manifest."""

    role: str  # the upstream stage's name, e.g. "normalize"
    source: str | None  # the source that the upstream step belongs to, if any
    directory: str
    manifest: Manifest
    covered: bool = True  # True if the fingerprint of the step that reads this input covers the input's identity


@dataclass(frozen=True)
class Step:
    """A stage with inputs and parameters. Settings in `operations`, such as limits, do not affect the fingerprint."""

    stage: str
    dataset: str  # the recipe's name, or the source's name if the step belongs to one source
    directory: str  # the absolute URL of the step's output directory
    fingerprint: str
    parameters: dict[str, Any]
    inputs: tuple[StepInput, ...] = ()
    operations: dict[str, Any] = field(default_factory=dict)
    version: int = 1  # the stage's format version, which the fingerprint covers
    code: str = ""  # the hash of the user's code file, if the step runs one; not part of the fingerprint
    limits: DiskLimits = field(default_factory=DiskLimits)

    def inputs_of(self, role: str) -> list[StepInput]:
        """Return the inputs with this role, in recipe order."""
        return [entry for entry in self.inputs if entry.role == role]


@dataclass(frozen=True, slots=True)
class Task:
    """A unit of work: a function with its arguments.

    key: a name that is unique within the phase and the same in every run.
    function: the name of the task function, as `package.module:name`. It is called as `function(arguments, shared,
    context) -> TaskResult`.
    bisect_argument: the name of a list argument. If attempts die and no record can be blamed, the list is split to find
    the bad entry. A task that gets only part of the list must write the same files for its entries as the whole task
    would.
    stored_bytes: the size of the input as it is stored, which limits what the task may write (`disk_limits.py`); None
    if `input_bytes` is this size.
    file: the file that the task reads, for messages; "" if there are several.
    held_bytes: how much of its input the task may hold in memory at a time; None if `input_bytes` is this size.
    secret: a value that the function needs but that must not be stored, such as a URL's signature; the function finds
    it in its arguments under the name SECRET. It is not part of the task's digest, since it may differ in every run.
    """

    key: str
    function: str
    arguments: dict[str, Any]
    input_bytes: int = 0  # used for scheduling (largest first), the memory budget (see `held_bytes`) and the ETA
    bisect_argument: str = ""
    stored_bytes: int | None = None
    file: str = ""
    secret: str = field(default="", repr=False)
    held_bytes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", sys.intern(self.function))  # one string object for 100,000 tasks

    def all_arguments(self) -> dict[str, Any]:
        """Return the arguments with which the function is called: those that are stored, and the secret."""
        return {**self.arguments, SECRET: self.secret} if self.secret else self.arguments


@dataclass(frozen=True)
class Preload:
    """Work that the fork server does once for all attempts: import `module`, then call `function(*arguments)`. In a
    task, `preloaded(function, *arguments)` returns the value that the server computed. The function must not start
    threads, because forking a multi-threaded process can deadlock.

    kernels: True if the function loads numba kernels; the process from which fork servers are forked then loads numba
    for all of them.
    """

    module: str
    function: str | None = None
    arguments: tuple[str, ...] = ()
    kernels: bool = False


@dataclass(frozen=True)
class Tolerance:
    """The limit on unusable records that may be skipped.

    limit: a number of records or, as a float up to 1, a share of the records read.
    listed: records, as `file:position`, that may be skipped without counting toward the limit.
    Both are operation parameters, so after the limit is raised, the run resumes where it stopped.
    key: the recipe's key for the limit, for messages.
    """

    limit: int | float = 0
    listed: tuple[str, ...] = ()
    key: str = "max_quarantined"

    def allowed(self, records: int) -> int:
        """Return how many of `records` records may be skipped in addition to those listed."""
        return int(self.limit * records) if isinstance(self.limit, float) else self.limit

    @classmethod
    def of(cls, operations: Mapping[str, Any], stage: str = "") -> Tolerance:
        """Build the tolerance from a step's operation parameters."""
        table = TABLES.get(stage, stage)
        key = f"{table}.max_quarantined" if table else "max_quarantined"
        return cls(operations.get("max_quarantined", 0), tuple(operations.get("quarantine", ())), key)


@dataclass(frozen=True)
class Phase:
    """Tasks that may run in any order. Their files below `exchange/` are removed once the manifest is written, or
    dropped by a later phase.

    memory_bytes: the memory that an attempt gets, in addition to `memory_per_input_byte` times the bytes of input that
    the task holds.
    hang_seconds: the time without a heartbeat after which an attempt is killed.
    batches: True if tiny tasks may share a child.
    tolerance: the limit on the records that this phase may skip.
    drops: folders below `exchange/` that no later phase reads. They may be removed when this phase is complete.
    copies: True if the tasks write what they read, so that what they have written shows how far they are.
    """

    name: str
    tasks: tuple[Task, ...]
    shared: dict[str, Any] = field(default_factory=dict)
    preloads: tuple[Preload, ...] = ()
    cpus: int = 1
    memory_bytes: int = 1 << 30
    memory_per_input_byte: float = 6.0
    hang_seconds: float = HANG_SECONDS
    batches: bool = True
    tolerance: Tolerance = Tolerance()
    drops: tuple[str, ...] = ()
    copies: bool = False


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that a task committed: its path in the step's directory, its size, its checksum and its number of rows."""

    path: str
    bytes: int
    xxh3: str
    rows: int = 0


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A skipped record: its file (a relative path), its position in the file and the reason, but never its text.
    position: the byte offset in the uncompressed text file, or the row in a Parquet or Arrow file.
    records: the number of skipped records, the first at the position; more than 1 if they could not be told apart.
    """

    file: str
    position: int
    reason: str
    records: int = 1


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The files and counts of a finished task. `details` is small plain data for planning the next phase.

    open: the number of records that the task has left for a later run, for example because a budget is spent; why_open:
    the reason, and what to do. The step then ends as partial, and the next run repeats the task.
    """

    outputs: tuple[OutputFile, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    quarantined: tuple[QuarantinedRecord, ...] = ()
    records: int = 0  # number of records read, for the progress display and for limits given as a share of them
    bytes_read: int = 0
    open: int = 0
    why_open: str = ""


@dataclass(frozen=True, slots=True)
class RecordRange:
    """The records that an attempt is working on: `records` of them, the first at `position` in `file`."""

    file: str
    position: int
    records: int = 1

    def may_contain(self, file: str, position: int) -> bool:
        """Return True if the record at this position may be in the range. Only the start of the range is compared."""
        return self == ALL_RECORDS or (self.file == file and self.position <= position)

    def __str__(self) -> str:
        more = f" and {self.records - 1} more" if self.records > 1 else ""
        return f"{self.file}:{self.position}{more}"


ALL_RECORDS = RecordRange("", 0, 0)  # stands for all records of a task


@dataclass
class TaskContext:
    """The resources of a task function: the step's directory, a private scratch directory, CPUs and the heartbeat.

    try_singly: the (file, position) of each batch in which an earlier attempt died. The records of these batches, or
    all records of the task if ALL_RECORDS is among the batches, are tried one by one.
    skip: the (file, position) of each record to skip, with the reason.
    write_limit: the limit on what the task may write. The engine enforces it. A task that knows which file exceeds it
    should raise `WriteLimit.error` itself, so that the message names the file.
    Calls to `report`, `hold` and `release` take less than a microsecond each; make them for every batch.
    """

    step_directory: str
    scratch: Path
    cpus: int = 1
    report: Callable[[int, int], None] = lambda records, bytes_read: None  # report the progress so far
    hold: Callable[[str, int, int], None] = lambda file, position, records: None  # name the records to process next
    release: Callable[[], None] = lambda: None  # report that no record is in progress
    try_singly: frozenset[tuple[str, int]] = frozenset()
    skip: Mapping[tuple[str, int], str] = field(default_factory=dict)
    tolerance: Tolerance = Tolerance()
    write_limit: WriteLimit | None = None

    def records(
        self, files: str | Sequence[str], positions: Sequence[int] | np.ndarray, try_record: Callable[[int], object]
    ) -> tuple[np.ndarray | None, list[QuarantinedRecord]]:
        """Announce the batch to be worked on next. Call this right before the work, once for each kind of work. Call
        `release` after the work and before reading more, so that a crash of the reader is not blamed on this batch.
        `files` is the one file that all records come from, or a list with each record's file; `positions` holds the
        records' positions in their files. If an earlier attempt died in this batch, `try_record(row)` is first called
        for each record. The callback must do the same work on that one record and discard the result, so that the next
        death identifies the record. The output always comes from whole batches, so these trials do not change it.
        Returns the rows to work on (a mask, or None for all rows) and the records to skip.
        """
        if not len(positions):
            return None, []
        kept, left_out = self._without_skipped(files, positions)
        if self._tries_singly(files, positions):
            for row in range(len(positions)) if kept is None else np.flatnonzero(kept).tolist():
                self.hold(files if isinstance(files, str) else files[row], int(positions[row]), 1)
                try_record(row)
        if kept is not None and not kept.any():
            self.release()
            return kept, left_out
        self.hold(files if isinstance(files, str) else files[0], int(positions[0]), len(positions))
        return kept, left_out

    def _tries_singly(self, files: str | Sequence[str], positions: Sequence[int] | np.ndarray) -> bool:
        if (ALL_RECORDS.file, ALL_RECORDS.position) in self.try_singly:
            return True
        if isinstance(files, str):
            first, last = positions[0], positions[-1]
            return any(file == files and first <= position <= last for file, position in self.try_singly)
        return bool(self.try_singly) and not self.try_singly.isdisjoint(zip(files, map(int, positions), strict=True))

    def _without_skipped(
        self, files: str | Sequence[str], positions: Sequence[int] | np.ndarray
    ) -> tuple[np.ndarray | None, list[QuarantinedRecord]]:
        if not self.skip:
            return None, []
        names = [files] * len(positions) if isinstance(files, str) else files
        places = list(zip(names, map(int, positions), strict=True))
        left_out = [QuarantinedRecord(*place, self.skip[place]) for place in places if place in self.skip]
        return (np.array([place not in self.skip for place in places]) if left_out else None), left_out


@dataclass(frozen=True)
class Output:
    """A stage's description of its finished step, for the manifest. The `counters` are added to those of the tasks.

    files: the files that belong to no partition and that `details` does not describe. model_answers: the hash of the
    answers of model servers that the step has used, which the step's identity covers; "" if there are none.
    """

    partitions: list[Partition]
    schema: pa.Schema
    counters: dict[str, int] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    files: Sequence[OutputFile] = ()
    model_answers: str = ""


def without_tolerances(config: Any) -> dict[str, Any]:
    """Return a config as plain data without the fields in TOLERANCES. What remains determines a step's output bytes."""
    return {name: value for name, value in spelled_out(config).items() if name not in TOLERANCES}


def tolerance_of(step: Step) -> Tolerance:
    """Return the step's tolerance. Tests may set it in `parameters` instead of `operations`."""
    return Tolerance.of({**step.parameters, **step.operations}, step.stage)


def resolve(function: str) -> Callable[..., Any]:
    """Import and return the object named `package.module:name`. Raises ImportError or AttributeError."""
    module, _, attribute = function.partition(":")
    return getattr(importlib.import_module(module), attribute)


def input_references(step: Step) -> list[InputReference]:
    """List the step's inputs in the form used by its manifest, with paths relative to the step's directory."""
    return [
        InputReference(
            stage=item.role,
            path=urls.relative(manifest_url(item.directory), step.directory),
            identity=item.manifest.identity,
            checksum=item.manifest.checksum,
            covered=item.covered,
        )
        for item in step.inputs
    ]


def encode(value: Any) -> bytes:
    """Encode a Task, a TaskResult or plain data as msgpack."""
    return msgspec.msgpack.encode(value)


def decode(data: bytes, kind: Any = Any) -> Any:
    """Decode msgpack data that `encode` returned, as a value of type `kind`."""
    return msgspec.msgpack.decode(data, type=kind)
