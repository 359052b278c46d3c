"""The words of the engine, as plain data: what is to be done, and what came of it.

    Step     one stage of one recipe: a directory, parameters, inputs
    Phase    tasks that may run in any order; a phase begins when the one before it is done
    Task     the work for one output, named by a key: a function, its arguments, the bytes it will read
    Result   what a task wrote and counted
    Output   what a stage says of its finished step: partitions in order, schema, counters

A stage is a generator: it yields phases, receives each phase's results in the order of its tasks, and returns an
Output. Tasks and results cross process and machine borders as msgpack, so arguments are plain values and small: what
many tasks need goes once into `Phase.shared`, which is written to the step's directory and read by each child.

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

from datakit.storage.fingerprint import spelled_out
from datakit.storage.manifest import InputReference, Manifest, Partition

Plan = Generator["Phase", "Sequence[TaskResult]", "Output"]
TOLERANCES = ("max_quarantined", "quarantine", "max_removal")  # fields of configs that are operation parameters
BATCH_HANG_SECONDS = 600.0  # for tasks that move with every few MiB
HANG_SECONDS = 1800.0  # the reference tokenizer takes up to 2 s for a MB, and may have 256 MiB in hand


@dataclass(frozen=True)
class StepInput:
    """An upstream step that is done: its role for this stage, its directory, its manifest."""

    role: str  # the stage's name, e.g. "normalize"
    source: str | None  # of which source, where it belongs to one
    directory: str
    manifest: Manifest


@dataclass(frozen=True)
class Step:
    """One stage of one recipe. `parameters` are in the fingerprint, `operations` (workers, memory, ...) are not."""

    stage: str
    dataset: str  # the recipe's name, or the source's where the step belongs to one source
    directory: str  # the absolute URL of its output directory
    fingerprint: str
    parameters: dict[str, Any]
    inputs: tuple[StepInput, ...] = ()
    operations: dict[str, Any] = field(default_factory=dict)

    def inputs_of(self, role: str) -> list[StepInput]:
        """The inputs with this role, in the order of the recipe."""
        return [entry for entry in self.inputs if entry.role == role]


@dataclass(frozen=True, slots=True)
class Task:
    """The work for one output. `function` is `package.module:name`, `key` unique in its phase and stable between runs.

    The function is called as `function(arguments, shared, context) -> TaskResult`.
    halves: the argument, a list, that may be cut in two so that each half is a task that writes the same files for its
    entries as the whole: so that a crash without a record in hand can be narrowed down to one entry.
    """

    key: str
    function: str
    arguments: dict[str, Any]
    input_bytes: int = 0  # for the order (biggest first), the memory budget and the ETA
    halves: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", sys.intern(self.function))  # one string, not 100,000 equal ones


@dataclass(frozen=True)
class Preload:
    """What the fork server does once, so no attempt pays for it: import `module`, then call `function(*arguments)`.

    The value is kept and found again with `preloaded(function, *arguments)`. It must start no thread: a fork of a
    multi-threaded process can deadlock.
    """

    module: str
    function: str | None = None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tolerance:
    """How many records may be left out because they cannot be worked on: what is allowed, and never what is done.

    limit: a number of records, or (below 1, as a float) a share of those that were read. listed: records that do not
    count, as `file:position`. It is an operation parameter: raising it goes on where the run had stopped.
    """

    limit: int | float = 0
    listed: tuple[str, ...] = ()

    def allowed(self, records: int) -> int:
        """How many of so many records may be left out, those that are listed aside."""
        return int(self.limit * records) if isinstance(self.limit, float) else self.limit


@dataclass(frozen=True)
class Phase:
    """Tasks that may run in any order. What they write below `exchange/` is removed when the manifest stands.

    memory_bytes: what an attempt may take beside `memory_per_input_byte` times the task's input bytes.
    hang_seconds: an attempt whose cursor has not moved for so long is killed. batches: tiny tasks may share a child.
    tolerance: how many records of the step so far, this phase's included, may be left out.
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


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that a task committed: its path relative to the step's directory, size in bytes, checksum, rows."""

    path: str
    bytes: int
    xxh3: str
    rows: int = 0


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A record that was left out: the file it came from (relative), its position there, and the reason. Never its text.

    position: the uncompressed byte offset in a text file, the row in a Parquet file. records: how many they are, where
    what begins there could not be told apart.
    """

    file: str
    position: int
    reason: str
    records: int = 1


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task wrote and counted. `details` is small and plain: what the next phase's planning needs."""

    outputs: tuple[OutputFile, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    quarantined: tuple[QuarantinedRecord, ...] = ()
    records: int = 0  # read, for the progress display
    bytes_read: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """What an attempt has in hand: `records` of them, the first one at `position` of `file`."""

    file: str
    position: int
    records: int = 1

    def holds(self, file: str, position: int) -> bool:
        """Whether that record may be one of these, as far as their beginning tells."""
        return self == EVERYTHING or (self.file == file and self.position <= position)

    def __str__(self) -> str:
        more = f" and {self.records - 1} more" if self.records > 1 else ""
        return f"{self.file}:{self.position}{more}"


EVERYTHING = Held("", 0, 0)  # every batch of a task


@dataclass
class TaskContext:
    """What a task function may touch: the step's directory, a private scratch directory, its CPUs, its cursor.

    fine: (file, position) of batches that were in hand when earlier attempts died, or that of EVERYTHING; their records
    are tried one by one.
    skip: (file, position) -> why, of records that are to be left out.
    """

    step_directory: str
    scratch: Path
    cpus: int = 1
    report: Callable[[int, int], None] = lambda records, bytes_read: None  # progress so far; cheap, call it per batch
    hold: Callable[[str, int, int], None] = lambda file, position, records: None  # what is in hand now; cheap as well
    release: Callable[[], None] = lambda: None  # nothing is in hand
    fine: frozenset[tuple[str, int]] = frozenset()
    skip: Mapping[tuple[str, int], str] = field(default_factory=dict)
    tolerance: Tolerance = Tolerance()

    def records(
        self, files: str | Sequence[str], positions: Sequence[int] | np.ndarray, alone: Callable[[int], object]
    ) -> tuple[np.ndarray | None, list[QuarantinedRecord]]:
        """Take a batch of records in hand: call it right before working on them, once for each kind of work.

        Call `release` when the work is done and before more is read: what kills the reader is not in this batch.

        `files`: the file of all of them, or one for each. Where this batch was in hand when an earlier attempt died,
        each record is first given to `alone(row)`: the same work on one record, for nothing, so that the one that kills
        is found in hand. What is written comes from the batch as a whole in any case, and so is the same.

        Returns which rows to work on (a mask; None for all) and the records that are to be left out.
        """
        if not len(positions):
            return None, []
        kept, left_out = self._without_skipped(files, positions)
        if self._is_fine(files, positions):
            for row in range(len(positions)) if kept is None else np.flatnonzero(kept).tolist():
                self.hold(files if isinstance(files, str) else files[row], int(positions[row]), 1)
                alone(row)
        if kept is not None and not kept.any():
            self.release()
            return kept, left_out
        self.hold(files if isinstance(files, str) else files[0], int(positions[0]), len(positions))
        return kept, left_out

    def _is_fine(self, files: str | Sequence[str], positions: Sequence[int] | np.ndarray) -> bool:
        if (EVERYTHING.file, EVERYTHING.position) in self.fine:
            return True
        if isinstance(files, str):
            first, last = positions[0], positions[-1]
            return any(file == files and first <= position <= last for file, position in self.fine)
        return bool(self.fine) and not self.fine.isdisjoint(zip(files, map(int, positions), strict=True))

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
    """What a stage says of its finished step, for the manifest. `counters` are added to the tasks' own."""

    partitions: list[Partition]
    schema: pa.Schema
    counters: dict[str, int] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


def without_tolerances(config: Any) -> dict[str, Any]:
    """Return a config as plain data without TOLERANCES: what decides about the bytes of a step's output."""
    return {name: value for name, value in spelled_out(config).items() if name not in TOLERANCES}


def tolerance_of(step: Step) -> Tolerance:
    """What a step is told beside its parameters (or, in a test, among them)."""
    told = {**step.parameters, **step.operations}
    return Tolerance(told.get("max_quarantined", 0), tuple(told.get("quarantine", ())))


def resolve(function: str) -> Callable[..., Any]:
    """The object named `package.module:name`."""
    module, _, attribute = function.partition(":")
    return getattr(importlib.import_module(module), attribute)


def input_references(step: Step) -> list[InputReference]:
    """The step's inputs as its manifest records them, relative to its directory."""
    from datakit.storage import urls

    return [
        InputReference(
            stage=entry.role,
            path=urls.relative(urls.join(entry.directory, "manifest.json"), step.directory),
            identity=entry.manifest.identity,
        )
        for entry in step.inputs
    ]


def encode(value: Any) -> bytes:
    """msgpack of a Task, a TaskResult or plain data."""
    return msgspec.msgpack.encode(value)


def decode(data: bytes, kind: Any = Any) -> Any:
    """The inverse of `encode`."""
    return msgspec.msgpack.decode(data, type=kind)
