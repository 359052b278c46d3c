"""Arranges the documents of one bucket for the kernels: in survivor order, in arrays that are mapped to scratch files.

The sort keys are sorted in blocks (`sorted_blocks.py`). Then each document's shingles and band keys are copied from the
exchange to their final positions. A component may therefore have more documents than fit in memory; it takes 100 bytes
of scratch space per document, plus the shingles and band keys. Cost: two sorts and one copy. Memory: about 150 MiB,
plus the metadata of the exchange's record batches (of up to 4 MiB each).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.dedup.survivors import survivor_keys
from datakit.dedup.verification.arrays import Documents
from datakit.dedup.verification.kernels import copy_lists
from datakit.dedup.verification.run_kernels import scratch_array
from datakit.engine.exchange.sorted_blocks import SortedBlocks, sort_rows

LISTS = ("keys", "shingles")
SORTED_ROWS = 1 << 16  # rows that are added to the sort at a time


@dataclass(frozen=True)
class Arranged:
    """N documents in survivor order. row, high, low: uint64 [N], each document's row and the two halves of its id.
    place: int64 [N], the position of each document of the tables, in their order.
    """

    documents: Documents
    row: np.ndarray
    high: np.ndarray
    low: np.ndarray
    place: np.ndarray


def arrange(tables: Sequence[pa.Table], prefer: Sequence[str], scratch: Path) -> Arranged:
    """Return the documents of these tables (rows that phase `shingles` wrote); at least one document is required."""
    total = sum(table.num_rows for table in tables)
    row, high, low = (scratch_array(scratch / name, (total,), np.uint64) for name in ("row", "high", "low"))
    offsets = scratch_array(scratch / "offsets", (total + 1,), np.int64)
    place = scratch_array(scratch / "place", (total,), np.int64)
    starts: list[np.ndarray] = []
    at, last = 0, None
    for table in _sorted(tables, prefer, scratch).merged():
        stop = at + table.num_rows
        row[at:stop], high[at:stop], low[at:stop] = (table[name].to_numpy() for name in ("row", "high", "low"))
        offsets[at + 1 : stop + 1] = offsets[at] + np.cumsum(table["shingles"].to_numpy())
        place[table["arrival"].to_numpy()] = np.arange(at, stop)
        component = table["0"].to_numpy()
        starts.append(at + np.flatnonzero(np.concatenate([[component[0] != last], component[1:] != component[:-1]])))
        at, last = stop, component[-1]
    shingles, keys = _lists(tables, offsets, place, scratch)
    rank, by_rank = _ranks(high, low, scratch)
    documents = Documents(np.concatenate([*starts, [total]]), offsets, shingles, keys, rank, by_rank)
    return Arranged(documents, row, high, low, place)


def _sorted(tables: Sequence[pa.Table], prefer: Sequence[str], scratch: Path) -> SortedBlocks:
    """Sort by the survivor keys, in columns named "0", "1", ... The other columns are the row, the halves of the id,
    the number of shingles, and `arrival`, the document's index in the tables.
    """

    def keyed() -> Iterator[pa.Table]:
        first = 0
        for table in tables:
            for start in range(0, table.num_rows, SORTED_ROWS):
                rows = table.slice(start, SORTED_ROWS)
                columns = {name: rows[name].to_numpy() for name in rows.column_names if name not in LISTS}
                found = {str(number): key for number, key in enumerate(survivor_keys(prefer, columns))}
                found |= {name: columns[name] for name in ("row", "high", "low")}
                found["shingles"] = pc.call_function("list_value_length", [rows["shingles"]]).to_numpy()
                found["arrival"] = np.arange(first, first + rows.num_rows)
                yield pa.table(found)
                first += rows.num_rows

    return sort_rows(keyed(), [str(number) for number in range(len(prefer) + 3)], scratch)


def _lists(
    tables: Sequence[pa.Table], offsets: np.ndarray, place: np.ndarray, scratch: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Copy all shingles and band keys to the positions that `offsets` and `place` give."""
    shingles = [chunk for table in tables for chunk in table["shingles"].chunks]
    keys = [chunk for table in tables for chunk in table["keys"].chunks]
    bands = keys[0].type.list_size
    values = scratch_array(scratch / "shingles", (int(offsets[-1]),), np.uint64)
    bands_of = scratch_array(scratch / "keys", (len(place), bands), np.uint64)
    first = 0
    for chunk, key_chunk in zip(shingles, keys, strict=True):
        places = place[first : first + len(chunk)]
        copy_lists(np.asarray(chunk.values), np.asarray(chunk.offsets), values, offsets, places)
        bands_of[places] = np.asarray(key_chunk.flatten()).reshape(-1, bands)
        first += len(chunk)
    return values, bands_of


def _ranks(high: np.ndarray, low: np.ndarray, scratch: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the position of each document in the order of ids, and the inverse permutation; both int64 [N]."""

    def rows() -> Iterator[pa.Table]:
        for first in range(0, len(high), SORTED_ROWS):
            stop = min(first + SORTED_ROWS, len(high))
            yield pa.table({"high": high[first:stop], "low": low[first:stop], "document": np.arange(first, stop)})

    rank = scratch_array(scratch / "rank", (len(high),), np.int64)
    by_rank = scratch_array(scratch / "by-rank", (len(high),), np.int64)
    at = 0
    for table in sort_rows(rows(), ("high", "low"), scratch).merged():
        documents = table["document"].to_numpy()
        by_rank[at : at + len(documents)], rank[documents] = documents, np.arange(at, at + len(documents))
        at += len(documents)
    return rank, by_rank
