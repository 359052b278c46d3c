"""Phase `shingles`: computes the shingle set of each clustered document, and routes it to the task that verifies the
document's component. The phase reads only the row groups with clustered documents, and routes only the clustered rows.
Each row holds everything that verification needs to know about one document: its component and id, the columns by which
documents are sorted for retention, its band keys and its sorted shingles. The rows of giant components are routed to an
exchange of their own (`giant_rows.py`). Cost: decoding the row groups with clustered documents, and computing sorted
sets at 70 to 170 MB of text per CPU-second. Memory: a row group, its shingles, and the budget of an exchange writer, or
of two if there are giant components.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.dedup.clusters.labels import labelled_rows
from datakit.dedup.giant_rows import GiantRows
from datakit.dedup.minhash.signatures_stage import key_names
from datakit.dedup.partitions import Part
from datakit.dedup.phase_data import PartRange, Routed, Shared
from datakit.dedup.score_tables import ScoreTable
from datakit.dedup.survivors import SCORE, score_columns, score_values
from datakit.engine.exchange.exchange import ExchangeWriter
from datakit.engine.task import TaskContext, TaskResult
from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.ids import ids_from_arrow, top_bits
from datakit.storage.parquet import open_shard, read_group
from datakit.text.hash_mixing import mix
from datakit.text.string_buffers import string_buffers

NUMBERS = ("component", "row", "high", "low")


def schema(bands: int, scores: list[str]) -> pa.Schema:
    """Return the schema of the routed rows. The column `keys` holds a document's band keys, and `shingles` its
    shingles, sorted and without repeats.
    """
    numbers = [pa.field(name, pa.uint64()) for name in NUMBERS]
    lengths = [pa.field("source", pa.int64()), pa.field("length", pa.int64())]
    floats = [pa.field(SCORE + name, pa.float64()) for name in scores]
    lists = [pa.field("keys", pa.list_(pa.uint64(), bands)), pa.field("shingles", pa.large_list(pa.uint64()))]
    return pa.schema([*numbers, *lengths, *floats, *lists])


def route(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Route the clustered documents of a range of parts to the buckets of their components."""
    work, common = msgspec.convert(arguments, PartRange), msgspec.convert(shared, Shared)
    rows, components = labelled_rows(common, context, work)
    records = size = 0
    key, budget = f"{work.first:05d}", 128 << 20
    with (
        ExchangeWriter(context, "shingles", key, work.buckets, budget) as writer,
        GiantRows(context, key, common, budget) as giants,
    ):
        for part in work.parts:
            inside = slice(*np.searchsorted(rows, np.array([part.first_row, part.last_row], np.uint64)))
            for table, length in _clustered(part, rows[inside], components[inside], common, context):
                others = giants.take(table)
                writer.write(others, top_bits(mix(others["component"].to_numpy()), work.buckets))
                records, size = records + table.num_rows, size + length
                context.report(records, size)
    details = msgspec.to_builtins(Routed(writer.runs, giants.runs, giants.described()))
    return TaskResult(writer.outputs + giants.outputs, details=details, records=records, bytes_read=size)


def _clustered(
    part: Part, rows: np.ndarray, components: np.ndarray, shared: Shared, context: TaskContext
) -> Iterator[tuple[pa.Table, int]]:
    """Yield, for each row group with clustered documents, the rows to write and the size of their texts in bytes."""
    from datakit.text.shingles import shingle_sets  # imported here, so that planning need not load numba

    scores, bands = score_columns(shared.prefer), shared.bands
    wanted = rows.astype(np.int64) - part.first_row
    signatures = _selected(urls.join(context.step_directory, part.signatures), ["id", *key_names(bands)], wanted)
    signed_rows = _Rows(table for _, table in signatures)
    tables = {
        name: ScoreTable(urls.join(context.step_directory, path), name.partition(".")[2])
        for name, path in part.scores.items()
    }
    columns = ["id", "text", *(name for name in scores if name not in tables)]
    for places, documents in _selected(urls.join(context.step_directory, part.documents), columns, wanted):
        signed = signed_rows.take(documents.num_rows)
        if not documents["id"].equals(signed["id"]):
            raise CorruptError(
                f"{part.signatures} and {part.documents} have different ids; remove the directory of the step that "
                "wrote the former and run again"
            )
        high, low = ids_from_arrow(documents["id"])
        lengths = np.diff(string_buffers(documents["text"])[1])
        offsets, shingles = shingle_sets(documents["text"], shared.ngram)
        keys = np.stack([signed[name].to_numpy() for name in key_names(bands)], axis=1).reshape(-1)
        routed = [components[places], rows[places], high, low, np.full(len(high), part.source_number), lengths]
        routed += [tables[name].of(high, low) if name in tables else score_values(documents[name]) for name in scores]
        routed += [pa.FixedSizeListArray.from_arrays(pa.array(keys), bands)]
        routed += [pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(shingles))]
        yield pa.table(routed, schema=schema(bands, scores)), int(lengths.sum())


class _Rows:
    """A stream of tables from which rows are taken in order."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables, self._rest = tables, next(tables, None)

    def take(self, rows: int) -> pa.Table:
        """Return the next `rows` rows, at least one."""
        parts: list[pa.Table] = []
        while rows:
            assert self._rest is not None, "documents and signatures are selected by the same rows"
            parts.append(self._rest.slice(0, rows))
            rows, self._rest = rows - parts[-1].num_rows, self._rest.slice(parts[-1].num_rows)
            if not self._rest.num_rows:
                self._rest = next(self._tables, None)
        return pa.concat_tables(parts)


def _selected(url: str, columns: list[str], wanted: np.ndarray) -> Iterator[tuple[slice, pa.Table]]:
    """Yield, for each row group with rows in `wanted` (ascending), the slice of `wanted` that holds these rows, and a
    table of the rows.
    """
    if not len(wanted):
        return
    with open_shard(url) as shard:
        start = 0
        for group in range(shard.metadata.num_row_groups):
            stop = start + shard.metadata.row_group(group).num_rows
            first, last = np.searchsorted(wanted, [start, stop])
            if first < last:
                table = read_group(shard, group, url, columns)
                yield slice(int(first), int(last)), table.take(pa.array(wanted[first:last] - start)).combine_chunks()
            start = stop
