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
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.dedup import exact_duplicates
from datakit.dedup.partitions import Part, part_of
from datakit.dedup.phase_data import PartRange, Shared, Written
from datakit.dedup.verification.verify import VERDICT
from datakit.engine.exchange.exchange import read_buckets
from datakit.engine.task import OutputFile, TaskContext, TaskResult
from datakit.storage import urls
from datakit.storage.ids import ids_to_arrow, partition_name
from datakit.storage.manifest import data_path
from datakit.storage.parquet import ShardWriter

DICTIONARY = ("reason", "cluster_id", "representative_id", "representative_source")
STRINGS = [pa.field(name, pa.string(), nullable=False) for name in ("id", *DICTIONARY)]
SCHEMA = pa.schema([*STRINGS, pa.field("jaccard", pa.float64(), nullable=False)])


def write(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the attribute files of a range of parts."""
    work, common = msgspec.convert(arguments, PartRange), msgspec.convert(shared, Shared)
    parts, mine = common.parts, common.parts[work.first : work.stop]
    verdicts = _verdicts(common, context, [(work.first, work.stop)])
    rows = _with_copies(verdicts, exact_duplicates.removed_rows(common, context, work), common, context)
    outputs: list[OutputFile] = []
    removed: list[tuple[int, int]] = []
    bounds: list[tuple[str | None, str | None]] = []
    for part in mine:
        inside = slice(*np.searchsorted(rows["row"], np.array([part.first_row, part.last_row], np.uint64)))
        gone = {name: values[inside] for name, values in rows.items()}
        path = data_path(part.source, partition_name(part.index, part.count))
        with ShardWriter(urls.join(context.step_directory, path), SCHEMA, DICTIONARY) as writer:
            writer.write(table := _attributes(gone, parts))
        outputs.append(OutputFile(path, writer.info.bytes, writer.info.xxh3, writer.info.rows))
        copies = int(gone["exact"].sum())
        removed.append((copies, table.num_rows - copies))
        ids = table["id"]
        bounds.append((ids[0].as_py(), ids[-1].as_py()) if len(ids) else (None, None))
    copies, fuzzy = (int(total) for total in np.array(removed, np.int64).sum(axis=0))
    documents = sum(part.rows for part in mine)
    counters = {"dedup/documents_in": documents, "dedup/exact_removed": copies, "dedup/fuzzy_removed": fuzzy}
    counters["dedup/retained"] = documents - copies - fuzzy
    details = msgspec.to_builtins(Written(removed, bounds))
    return TaskResult(tuple(outputs), counters, details, records=copies + fuzzy)


def _verdicts(shared: Shared, context: TaskContext, ranges: Sequence[tuple[int, int]]) -> dict[str, np.ndarray]:
    """Return the verdicts on the rows in these ranges of parts, in ascending order of row: arrays by column name."""
    tables = [VERDICT.empty_table()]
    for first, stop in ranges:
        tables += read_buckets(context.step_directory, shared.verdict_runs, first, stop, context.scratch)
    table = pa.concat_tables(tables).combine_chunks()
    order = np.argsort(table["row"].to_numpy(), kind="stable")
    return {name: table[name].to_numpy()[order] for name in table.column_names}


def _with_copies(
    verdicts: dict[str, np.ndarray], copies: pa.Table, shared: Shared, context: TaskContext
) -> dict[str, np.ndarray]:
    """Return the columns for fuzzy duplicates and exact copies together, in order of row. The added column `exact` is
    True for copies.
    """
    row, high, low, kept = (copies[name].to_numpy() for name in ("row", "high", "low", "kept_row"))
    first_copies = {"row": row, "high": high, "low": low, "cluster_high": high, "cluster_low": low}
    first_copies |= {"kept_row": kept, "kept_high": high, "kept_low": low, "jaccard": np.ones(len(row))}
    there = np.unique(part_of(kept, shared.parts))
    runs = np.split(there, np.flatnonzero(np.diff(there) > 1) + 1) if len(there) else []
    later = _verdicts(shared, context, [(int(run[0]), int(run[-1]) + 1) for run in runs])
    at = np.minimum(np.searchsorted(later["row"], kept), max(0, len(later["row"]) - 1))
    gone = np.flatnonzero(later["row"][at] == kept) if len(later["row"]) else np.empty(0, np.int64)
    for name in ("cluster_high", "cluster_low", "kept_row", "kept_high", "kept_low", "jaccard"):
        first_copies[name] = first_copies[name].copy()
        first_copies[name][gone] = later[name][at[gone]]
    both = {name: np.concatenate([verdicts[name], first_copies[name]]) for name in VERDICT.names}
    both["exact"] = np.repeat([False, True], [len(verdicts["row"]), len(row)])
    order = np.argsort(both["row"], kind="stable")
    return {name: values[order] for name, values in both.items()}


def _attributes(rows: dict[str, np.ndarray], parts: Sequence[Part]) -> pa.Table:
    names = list(dict.fromkeys(part.source for part in parts))
    source_of = np.array([part.source_number for part in parts], np.int64)
    columns = [
        ids_to_arrow(rows["high"], rows["low"]),
        pa.array(["fuzzy", "exact"]).take(pa.array(rows["exact"].astype(np.int8))),
        ids_to_arrow(rows["cluster_high"], rows["cluster_low"]),
        ids_to_arrow(rows["kept_high"], rows["kept_low"]),
        pa.array(names, pa.string()).take(pa.array(source_of[part_of(rows["kept_row"], parts)])),
        pa.array(rows["jaccard"]),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
