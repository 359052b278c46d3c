"""Phase `attributes`: writes, for each partition, a file that lists the partition's removed documents, each with the
reason, cluster and representative. The file `data/<source>/part-00017-of-00106.parquet` lists the removed documents of
partition 17 in ascending order of id. If none is removed, the file has no rows. Every file has these columns, without
nulls:

    id                     the removed document
    reason                 "exact" (an earlier source contains the same text) or "fuzzy" (a similar text is retained)
    cluster_id             the smallest id in its component; for an exact copy of a retained document, its own id
    representative_id      the retained document that represents the removed document, as defined below
    representative_source  the source of the representative
    jaccard                the exact Jaccard similarity of the removed document and its representative

A representative is always retained. If the first copy of a text is removed as a fuzzy duplicate, the representative of
that copy also represents all exact copies of the text. Since all copies have the same text, they all have the same
Jaccard similarity to the representative.

A task sorts its removed documents by row in blocks (`sorted_blocks.py`) and streams them to its files. The verdict on
the first copy of a text may be in any other partition. The verdicts are therefore read again for each table of copies,
and only those on the first copies in the table are held. Memory: about 200 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.dedup.phase_data import PartRange, Shared, Written
from datakit.dedup.row_buckets import read_rows
from datakit.dedup.verification.verify import VERDICT
from datakit.engine.exchange.exchange import read_buckets
from datakit.engine.exchange.row_buckets import bucket_of
from datakit.engine.exchange.sorted_blocks import sort_rows, sorted_rows
from datakit.engine.task import OutputFile, TaskContext, TaskResult
from datakit.storage import urls
from datakit.storage.ids import ids_to_arrow, partition_name
from datakit.storage.manifest import data_path
from datakit.storage.parquet import ShardWriter

DICTIONARY = ("reason", "cluster_id", "representative_id", "representative_source")
STRINGS = [pa.field(name, pa.string(), nullable=False) for name in ("id", *DICTIONARY)]
# columns that change if the first copy is removed
CHANGED = ("cluster_high", "cluster_low", "kept_row", "kept_high", "kept_low", "jaccard")
SCHEMA = pa.schema([*STRINGS, pa.field("jaccard", pa.float64(), nullable=False)])


def write(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the attribute files of a range of parts."""
    work, common = msgspec.convert(arguments, PartRange), msgspec.convert(shared, Shared)
    sources, begins = _Sources(common.sources), np.array([part.first_row for part in work.parts], np.uint64)
    removals = groupby(_by_part(_removals(work, common, context), begins), key=itemgetter(0))
    waiting = next(removals, None)
    outputs: list[OutputFile] = []
    removed: list[tuple[int, int]] = []
    bounds: list[tuple[str | None, str | None]] = []
    for number, part in enumerate(work.parts):
        here = waiting[1] if waiting is not None and waiting[0] == number else ()
        path = data_path(part.source, partition_name(part.index, part.count))
        copies, first, last = 0, None, None
        with ShardWriter(urls.join(context.step_directory, path), SCHEMA, DICTIONARY) as writer:
            for _, table in here:
                writer.write(rows := _attributes(table, sources))
                copies += pc.call_function("sum", [table["exact"]]).as_py()
                first, last = rows["id"][0].as_py() if first is None else first, rows["id"][-1].as_py()
        if here:
            waiting = next(removals, None)
        outputs.append(OutputFile(path, writer.info.bytes, writer.info.xxh3, writer.info.rows))
        removed.append((copies, writer.info.rows - copies))
        bounds.append((first, last))
    assert waiting is None, "every removed row is in one of the parts"
    copies, fuzzy = (int(total) for total in np.array(removed, np.int64).sum(axis=0))
    documents = sum(part.rows for part in work.parts)
    counters = {"dedup/documents_in": documents, "dedup/exact_removed": copies, "dedup/fuzzy_removed": fuzzy}
    counters["dedup/retained"] = documents - copies - fuzzy
    details = msgspec.to_builtins(Written(removed, bounds))
    return TaskResult(tuple(outputs), counters, details, records=copies + fuzzy)


def _removals(work: PartRange, shared: Shared, context: TaskContext) -> Iterator[pa.Table]:
    """Yield the verdicts on the rows of these parts and the exact copies among these rows, in ascending order of row.
    The added column `exact` is True for copies.
    """
    fuzzy = read_rows(shared.verdict_runs, shared.buckets, work, context)
    found = read_rows(shared.exact_runs, shared.buckets, work, context)
    copies = sort_rows(found, ["kept_row"], context.scratch)
    exact = (_with_verdicts(table, shared, context) for table in copies.merged())
    marked = (table.append_column("exact", pa.repeat(pa.scalar(False), table.num_rows)) for table in fuzzy)
    yield from sort_rows(chain(marked, exact), ["row"], context.scratch).merged()


def _with_verdicts(copies: pa.Table, shared: Shared, context: TaskContext) -> pa.Table:
    """Return the rows for exact copies, with the verdicts on their first copies. `copies` is sorted by the rows of the
    first copies, which may themselves be removed.
    """
    row, high, low, kept = (copies[name].to_numpy() for name in ("row", "high", "low", "kept_row"))
    rows = {"row": row, "high": high, "low": low, "cluster_high": high, "cluster_low": low}
    rows |= {"kept_row": kept, "kept_high": high, "kept_low": low, "jaccard": np.ones(len(row))}
    there = np.unique(bucket_of(kept, shared.buckets))
    for buckets in np.split(there, np.flatnonzero(np.diff(there) > 1) + 1):
        ends = int(buckets[0]), int(buckets[-1]) + 1
        for table in read_buckets(context.step_directory, shared.verdict_runs, *ends, context.scratch):
            wanted = np.isin(table["row"].to_numpy(), kept)
            later = sorted_rows(table.filter(pa.array(wanted)), ["row"])
            first, stop = (np.searchsorted(kept, later["row"].to_numpy(), side) for side in ("left", "right"))
            gone = np.repeat(first, stop - first) + _within(stop - first)
            for name in CHANGED if len(gone) else ():
                rows[name] = rows[name].copy()
                rows[name][gone] = np.repeat(later[name].to_numpy(), stop - first)
    return pa.table([rows[name] for name in VERDICT.names], schema=VERDICT).append_column(
        "exact", pa.repeat(pa.scalar(True), len(row))
    )


def _within(counts: np.ndarray) -> np.ndarray:
    """Return the numbers 0, 1, ..., count - 1 for each count, one range after the other.

    >>> _within(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _by_part(tables: Iterable[pa.Table], begins: np.ndarray) -> Iterator[tuple[int, pa.Table]]:
    """Split tables, whose rows ascend, at the boundaries of the parts. Yield pairs of a part's index and some of its
    rows. begins: the first row of each part.
    """
    for table in tables:
        inside = np.searchsorted(begins, table["row"].to_numpy(), side="right") - 1
        cuts = [0, *(np.flatnonzero(np.diff(inside)) + 1).tolist(), len(inside)]
        for first, stop in pairwise(cuts):
            yield int(inside[first]), table.slice(first, stop - first)


class _Sources:
    """Finds the sources of rows, in arrays that are made once per task, because there may be thousands of sources."""

    def __init__(self, sources: Sequence[tuple[str, int]]) -> None:
        names, first_rows = zip(*sources, strict=True)
        self._names, self._first = pa.array(names, pa.string()), np.array(first_rows, np.uint64)

    def of(self, rows: np.ndarray) -> pa.Array:
        """Return the name of the source of each row."""
        return self._names.take(pa.array(np.searchsorted(self._first, rows, side="right") - 1))


def _attributes(table: pa.Table, sources: _Sources) -> pa.Table:
    rows = {name: table[name].to_numpy() for name in VERDICT.names}
    columns = [
        ids_to_arrow(rows["high"], rows["low"]),
        pa.array(["fuzzy", "exact"]).take(table["exact"].cast(pa.int8()).combine_chunks()),
        ids_to_arrow(rows["cluster_high"], rows["cluster_low"]),
        ids_to_arrow(rows["kept_high"], rows["kept_low"]),
        sources.of(rows["kept_row"]),
        pa.array(rows["jaccard"]),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
