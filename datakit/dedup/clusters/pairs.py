"""Reads and writes pairs of row numbers piece by piece, so that a task's memory does not depend on the number of pairs.
Pairs are read from the runs of an exchange or from forest files. They are routed by their first row number, whose bits
are mixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from datakit.dedup.phase_data import BucketRange, Round, Runs
from datakit.engine.exchange.exchange import ExchangeWriter, read_buckets
from datakit.engine.task import TaskContext, TaskResult
from datakit.storage import urls
from datakit.storage.ids import top_bits
from datakit.storage.parquet import iterate_shard
from datakit.text.hash_mixing import mix

PAIRS = pa.schema([("node", pa.uint64()), ("other", pa.uint64())])
PAIR_BYTES = 16
NODE_BYTES = 72  # the maximum memory of a table per distinct node (see node_tables.py)
FIXED_BYTES = 192 << 20  # memory of a task besides its table: two writers, one piece, the libraries
PIECE_ROWS = 1 << 19  # pairs in memory at a time
WRITER_BYTES = 48 << 20  # the budget of an exchange writer

Pairs = tuple[np.ndarray, np.ndarray]


class PairReader:
    """Reads the pairs of a task, and reports the task's progress. rows: the number of pairs read so far."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self.rows = 0

    def runs(self, runs: Sequence[str], first: int, stop: int) -> Iterator[Pairs]:
        """Yield the pairs in buckets [first, stop) of these runs, in pieces of about PIECE_ROWS pairs."""
        context = self._context
        yield from self._pieces(read_buckets(context.step_directory, runs, first, stop, context.scratch))

    def forests(self, paths: Sequence[str]) -> Iterator[Pairs]:
        """Yield the edges (row, root) of these forest files, in pieces of about PIECE_ROWS edges."""
        places = (urls.join(self._context.step_directory, path) for path in paths)
        yield from self._pieces(table for place in places for table in iterate_shard(place, ["row", "root"]))

    def _pieces(self, tables: Iterable[pa.Table]) -> Iterator[Pairs]:
        waiting, rows = list[pa.RecordBatch](), 0
        for table in tables:
            for batch in table.to_batches(max_chunksize=PIECE_ROWS):
                waiting.append(batch)
                rows += batch.num_rows
                if rows >= PIECE_ROWS:
                    yield self._columns(waiting)
                    waiting, rows = [], 0
        if waiting:
            yield self._columns(waiting)

    def _columns(self, batches: list[pa.RecordBatch]) -> Pairs:
        first, second = (np.concatenate([batch.column(i).to_numpy() for batch in batches]) for i in (0, 1))
        self.rows += len(first)
        self._context.report(self.rows, self.rows * PAIR_BYTES)
        return first, second


def pair_writer(context: TaskContext, name: str, work: BucketRange, common: Round) -> ExchangeWriter:
    """Return the writer of the exchange `name` for the task that handles these buckets."""
    return ExchangeWriter(context, name, task_key(work, common), common.buckets, WRITER_BYTES)


def task_key(work: BucketRange, common: Round) -> str:
    """Return the prefix of the names of a task's runs."""
    return f"{common.memory}-{work.first:06d}"


def write_pairs(writer: ExchangeWriter, pairs: Pairs, buckets: int) -> None:
    """Route pairs to the buckets of their first numbers."""
    writer.write(pa.table([*pairs], schema=PAIRS), top_bits(mix(pairs[0]), buckets))


def pairs_result(reader: PairReader, writers: Sequence[ExchangeWriter], details: Runs) -> TaskResult:
    """Return the result of a task that read pairs with `reader`."""
    outputs = tuple(output for writer in writers for output in writer.outputs)
    size = reader.rows * PAIR_BYTES
    return TaskResult(outputs, {}, msgspec.to_builtins(details), records=reader.rows, bytes_read=size)
