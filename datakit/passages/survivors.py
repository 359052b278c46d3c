"""Reads the documents of a partition that rules and dedup retain, so that no passage is marked as the copy of one in a
document that leaves.

The lists of marked documents are joined with the partition on id, as in select; a mark without a document is an error.
Cost: decoding ids and texts. Memory: one row group of the partition and of each list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.errors import CorruptError
from datakit.passages.phase_data import Part
from datakit.storage import urls
from datakit.storage.ids import ADVICE, OrderedIds
from datakit.storage.parquet import iterate_shard
from datakit.storage.selection.matching import MatchedRows


class Survivors(NamedTuple):
    """Documents of a row group that stay. rows: their row numbers, int64 [M]. texts: M texts. left_out: the number of
    documents of the row group that leave.
    """

    rows: np.ndarray
    texts: pa.ChunkedArray
    left_out: int


def survivors(part: Part, directory: str, drop: Sequence[str]) -> Iterator[Survivors]:
    """Yield the documents of each row group that stay. directory: that of the step. drop: the reasons for which marked
    documents leave. Raises CorruptError if the lists do not belong to the partition.
    """
    dataset = urls.join(directory, part.documents)
    marks = [urls.join(directory, path) for path in part.marks]
    streams, ids, row = [MatchedRows(url, ["reason"]) for url in marks], OrderedIds(dataset), part.first_row
    for table in iterate_shard(dataset, ["id", "text"]):
        if not table.num_rows:
            continue
        high, low = ids.parse(table["id"])
        staying = np.ones(table.num_rows, bool)
        for stream, url in zip(streams, marks, strict=True):
            positions, rows = stream.up_to(high, low, dataset)
            if rows is not None:
                staying[positions[_leaving(rows, drop, url)]] = False
        kept = np.flatnonzero(staying)
        texts = table["text"] if len(kept) == table.num_rows else table["text"].take(pa.array(kept))
        yield Survivors(row + kept, texts, table.num_rows - len(kept))
        row += table.num_rows
    for stream in streams:
        stream.expect_end(dataset)
    if row != part.last_row:
        raise CorruptError(f"{dataset} has {row - part.first_row} rows, but its manifest states {part.rows}; {ADVICE}")


def _leaving(rows: pa.Table, drop: Sequence[str], url: str) -> np.ndarray:
    """Return which marked documents leave: bool [N]."""
    reasons = rows["reason"].cast(pa.string()).combine_chunks()
    if reasons.null_count:
        raise CorruptError(f"{url}: the column `reason` contains a null; {ADVICE}")
    options = pc.SetLookupOptions(pa.array(list(drop), pa.string()))
    return pc.call_function("is_in", [reasons], options).to_numpy(zero_copy_only=False)
