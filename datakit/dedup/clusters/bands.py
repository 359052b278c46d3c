"""Phases `bands` and `buckets`: route each document's band keys to buckets, and connect the documents that share a key.
A band key has 64 bits. The band's index is hashed into the key, so one exchange serves all bands and needs only 16
bytes per (key, row) pair. Exact copies and skipped documents are left out before the exchange. A bucket's task reads
the bucket run by run and keeps one row per distinct key, so a key shared by millions of documents takes no more memory
than any other key. The task reduces the edges that it finds to spanning forests of about FOLD_ROWS edges each, and
writes only these forests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.dedup import exact_duplicates
from datakit.dedup.minhash.signatures_stage import key_names
from datakit.dedup.partitions import Part, left_out
from datakit.dedup.phase_data import ForestFiles, PartRange, Runs, Shared
from datakit.engine.exchange.exchange import ExchangeWriter, read_buckets
from datakit.engine.task import OutputFile, TaskContext, TaskResult
from datakit.storage import urls
from datakit.storage.ids import top_bits
from datakit.storage.parquet import ShardWriter, iterate_shard

SCHEMA = pa.schema([("key", pa.uint64()), ("row", pa.uint64())])
FOREST = pa.schema([("row", pa.uint64()), ("root", pa.uint64())])
ROW_BYTES = 16
COUNTED: tuple[str, ...] = ("dedup/too_short", "dedup/saturated")
FOLD_ROWS = 4 << 20  # number of (key, row) pairs (64 MiB) that a task collects before it reduces them


def route(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Route the band keys of a range of parts to the keys' buckets."""
    work, common = msgspec.convert(arguments, PartRange), msgspec.convert(shared, Shared)
    removed = exact_duplicates.removed_rows(common, context, work)["row"].to_numpy()
    counts = dict.fromkeys(COUNTED, 0)
    with ExchangeWriter(context, "bands", f"{work.first:05d}", work.buckets, budget_bytes=128 << 20) as writer:
        for part in work.parts:
            for keys, rows in _candidate_keys(part, common.bands, removed, counts, context):
                writer.write(pa.table([keys, rows], schema=SCHEMA), top_bits(keys, work.buckets))
    size = sum(part.signature_bytes for part in work.parts)
    records = sum(part.rows for part in work.parts)
    return TaskResult(writer.outputs, counts, msgspec.to_builtins(Runs(writer.runs)), records=records, bytes_read=size)


def _candidate_keys(
    part: Part, bands: int, removed: np.ndarray, counts: dict[str, int], context: TaskContext
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the band keys of each row group and the row of each key, ordered by band. Exact copies (`removed`), skipped
    documents and those that the rules remove are left out. The number of documents skipped for each reason in COUNTED
    is added to `counts`.
    """
    row, leaving = part.first_row, left_out(part, context.step_directory)
    columns = [*(["id"] if part.left_out else []), "skipped", *key_names(bands)]
    for table in iterate_shard(urls.join(context.step_directory, part.signatures), columns):
        stays = np.ones(table.num_rows, bool)
        if part.left_out:
            stays[leaving.among(table["id"])] = False
        stays[removed[(removed >= row) & (removed < row + table.num_rows)].astype(np.int64) - row] = False
        skipped = table["skipped"].combine_chunks()
        for name in COUNTED:
            matches = pc.call_function("equal", [skipped, name.removeprefix("dedup/")]).fill_null(False)
            counts[name] += int((np.asarray(matches) & stays).sum())
        taken = np.flatnonzero(stays & np.asarray(skipped.is_null()))
        keys = np.concatenate([table[name].to_numpy()[taken] for name in key_names(bands)])
        yield keys, np.tile((row + taken).astype(np.uint64), bands)
        row += table.num_rows
        context.report(row - part.first_row, 0)


def connect(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Reduce one bucket of band keys to forests that connect all rows with a common key."""
    from datakit.dedup.clusters import components  # imported here, so that planning need not load numba

    bucket, runs = arguments["bucket"], msgspec.convert(shared, Runs).runs
    keys, rows = np.empty(0, np.uint64), np.empty(0, np.uint64)
    row, root = rows, rows  # the forest so far
    waiting: list[tuple[np.ndarray, np.ndarray]] = []
    records = folded = 0
    with ExitStack() as stack:
        forest = _Forest(f"exchange/forest/bucket-{bucket:05d}.parquet", context, stack)

        def fold(last: bool = False) -> None:
            nonlocal keys, rows, row, root
            keys, rows = map(np.concatenate, zip((keys, rows), *waiting, strict=True))
            waiting.clear()
            if last:  # no later row can have the same key
                shared_keys = components.possibly_shared(keys)
                keys, rows = keys[shared_keys], rows[shared_keys]
            keys, rows, left, right = components.bucket_edges(keys, rows)
            if len(row) + len(left) > FOLD_ROWS:  # later phases join the edges that were written
                forest.write(row, root)
                row, root = row[:0], root[:0]
            row, root = components.spanning_forest(np.concatenate([row, left]), np.concatenate([root, right]))

        for table in read_buckets(context.step_directory, runs, bucket, bucket + 1, context.scratch):
            for batch in table.to_batches(max_chunksize=FOLD_ROWS):
                waiting.append((batch["key"].to_numpy(), batch["row"].to_numpy()))
                records += batch.num_rows
                if records - folded >= FOLD_ROWS:
                    fold()
                    folded = records
                    context.report(records, records * ROW_BYTES)
        fold(last=True)
        forest.write(row, root)
    outputs = forest.outputs()
    details = msgspec.to_builtins(ForestFiles([output.path for output in outputs], forest.edges))
    return TaskResult(outputs, {}, details, records=records, bytes_read=records * ROW_BYTES)


class _Forest:
    """A file of edges (row, root), created only if there are any. edges: the number of edges written so far."""

    def __init__(self, path: str, context: TaskContext, stack: ExitStack) -> None:
        """stack: commits the file when it is closed."""
        self._path, self._url, self._stack = path, urls.join(context.step_directory, path), stack
        self._writer: ShardWriter | None = None
        self.edges = 0

    def write(self, row: np.ndarray, root: np.ndarray) -> None:
        """Append edges."""
        if not len(row):
            return
        if self._writer is None:
            self._writer = self._stack.enter_context(ShardWriter(self._url, FOREST))
        self._writer.write(pa.table([row, root], schema=FOREST))
        self.edges += len(row)

    def outputs(self) -> tuple[OutputFile, ...]:
        """Return the file; call this after the file has been committed."""
        if self._writer is None:
            return ()
        info = self._writer.info
        return (OutputFile(self._path, info.bytes, info.xxh3, info.rows),)
