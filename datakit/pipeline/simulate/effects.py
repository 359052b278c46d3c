"""Defines the effect of a simulated task (result, requests and bytes), and computes the cost of an exchange.

A `Simulator` is called once per phase and returns the function that simulates the phase's tasks (`Run`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from datakit.engine.exchange.exchange import COMBINED_RUNS
from datakit.engine.exchange.run_file import HEAD_BYTES, INDEX_SUFFIX, PIECE_BYTES
from datakit.engine.exchange.run_names import buckets_each, map_run
from datakit.engine.task import OutputFile, Phase, Step, Task, TaskResult
from datakit.pipeline.simulate.corpus import Corpus
from datakit.storage.atomic import S3_PART_BYTES
from datakit.storage.parquet import ROW_GROUP_BYTES
from datakit.storage.urls import READ_AHEAD_BYTES

ID_BYTES = 34  # of a document in a column of ids
FOOTER_BYTES = 64 << 10  # how much pyarrow reads from the end of a Parquet file at once
CHECKSUM = "0" * 32  # stands for checksums and ids; as long as a real one
BATCH_BYTES = 320  # bytes of an exchange run's record batch besides its values: metadata of a few columns
INDEX_BYTES = 400  # bytes of a run's index besides its offsets: mostly the schema


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one task. reads, writes: the numbers of requests to the store. read, written: the numbers of bytes,
    including those of the exchange. exchanged: the number of bytes written to the exchange. work: the number of bytes
    of input that take CPU time; None if this is all of the task's input.
    """

    result: TaskResult
    reads: int = 0
    writes: int = 0
    read: int = 0
    exchanged: int = 0
    work: int | None = None

    @property
    def written(self) -> int:
        """The number of bytes that the task writes."""
        return sum(output.bytes for output in self.result.outputs)


@dataclass
class Exchange:
    """The runs that one phase has written so far. values: the size of their rows in bytes, without the metadata of
    batches. buckets: the number of buckets in each file. pieces: the number of files of each merged run.
    """

    bytes: int = 0
    rows: int = 0
    runs: int = 0
    buckets: int = 1
    values: int = 0
    pieces: int = 1


@dataclass
class World:
    """The facts that simulated tasks use besides their arguments. exchanges: by step directory and exchange name."""

    corpus: Corpus
    exchanges: dict[tuple[str, str], Exchange] = field(default_factory=dict)

    def exchange(self, step: Step, runs: Sequence[str]) -> Exchange:
        """Return the exchange to which these runs belong; an empty one if there are none."""
        name = runs[0].split("/")[1] if runs else ""
        return self.exchanges.get((step.directory, name), Exchange())


@dataclass(frozen=True)
class PhaseOf:
    """A phase, its step, and the world in which it is simulated."""

    step: Step
    phase: Phase
    world: World

    @property
    def corpus(self) -> Corpus:
        """The corpus of the simulation."""
        return self.world.corpus


Run = Callable[[Task], Effect]
Simulator = Callable[[PhaseOf], Run]


@dataclass(frozen=True)
class Written:
    """The runs that a task has written to one exchange."""

    runs: list[str]
    outputs: tuple[OutputFile, ...]

    @property
    def bytes(self) -> int:
        """The size of all files, indexes included."""
        return sum(output.bytes for output in self.outputs)


def write_runs(about: PhaseOf, name: str, key: str, buckets: int, *, rows: int, size: int, budget: int) -> Written:
    """Return what an `ExchangeWriter` writes for `rows` rows of `size` bytes in all, spread evenly over the buckets."""
    if not rows:
        return Written([], ())
    each = buckets_each(buckets)
    own, fine = buckets // each, rows * math.ceil((each - 1).bit_length() / 8)
    parts = min(rows, max(1, math.ceil((size + 10 * rows) / min(max(1, budget // 2), 1 << 30))))
    count = math.ceil(parts / COMBINED_RUNS) if each > 1 else parts
    stored = size + fine + parts * batches_bytes(rows / parts, own)
    data, index = stored // count, INDEX_BYTES + 8 * (own + 1)
    paths = [map_run(f"exchange/{name}/{key}", number, each) for number in range(count)]
    exchange = about.world.exchanges.setdefault((about.step.directory, name), Exchange())
    exchange.bytes, exchange.rows = exchange.bytes + data * count, exchange.rows + rows
    exchange.runs, exchange.buckets, exchange.values = exchange.runs + count, own, exchange.values + size
    files = [(OutputFile(path, data, CHECKSUM, rows // count), path) for path in paths]
    outputs = (one for file, path in files for one in (file, OutputFile(path + INDEX_SUFFIX, index, CHECKSUM)))
    return Written(paths, tuple(outputs))


def batches_bytes(rows: float, buckets: int) -> int:
    """Return the size, in bytes, of the metadata of a run's batches. Each bucket with rows has one batch."""
    return int(BATCH_BYTES * (buckets * -math.expm1(-rows / buckets) if buckets > 1 else 1))


@dataclass(frozen=True)
class Reading:
    """The cost of reading a range of buckets from all runs: requests and bytes."""

    reads: int
    bytes: int


def read_runs(exchange: Exchange, runs: int, share: float, position: float = 0.5) -> Reading:
    """Return the cost of reading a share of the buckets of an exchange from all of its runs. position: the position of
    the range in the index, as a share of its length; offsets beyond the first HEAD_BYTES take another request.
    """
    if not runs:
        return Reading(0, 0)
    files = runs * max(1, math.ceil(share * exchange.pieces))
    size, rows = exchange.bytes * share / files, exchange.rows * share / files
    pieces = max(1, math.ceil(size / PIECE_BYTES))
    filled = -math.expm1(-rows) if rows < 30 else 1.0
    late = (position + share) * exchange.buckets * 8 + INDEX_BYTES > HEAD_BYTES
    return Reading(round(files * (1 + late + filled * pieces)), int(exchange.bytes * share))


def parquet_reads(size: int, text_bytes: int = 0, part: float = 1.0) -> int:
    """Return the number of requests that read a Parquet file of `size` bytes with this much text: for its size, for its
    footer, which is all of a small file, and for its row groups, unless an earlier request has read ahead far enough.
    part: how much is read of each row group, from its start.
    """
    if size <= FOOTER_BYTES:
        return 2
    groups = max(1, math.ceil(text_bytes / ROW_GROUP_BYTES))
    each, count, end = size / groups, 0, 0.0
    for number in range(groups):
        stop = (number + part) * each
        if stop > end:
            count, end = count + 1, stop + READ_AHEAD_BYTES
    return 2 + count


def id_reads(corpus: Corpus, rows: int, text_bytes: int | None = None) -> int:
    """Return the number of requests that read the ids of a normalized partition."""
    text = rows * corpus.document_bytes if text_bytes is None else text_bytes
    size = max(1, int(text * corpus.normalized))
    return parquet_reads(size, text, min(1.0, ID_BYTES * rows / size))


def put_requests(size: int) -> int:
    """Return the number of requests that write a file to S3: one or, for a large file, one for each part, and two to
    begin and to complete the upload.
    """
    return 1 if size < 2 * S3_PART_BYTES else 2 + math.ceil(size / S3_PART_BYTES)
