"""Reads the ids of partitions as arrays, and compares sorted lists of ids. An id is a pair of uint64: `high`, `low`.

Cost: ids are parsed at a few ns per byte. Memory: 16 bytes per id of a partition, and one row group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datakit.storage.ids import ids_from_arrow, ids_to_arrow, top_bits
from datakit.storage.parquet import iterate_shard, open_shard, read_group


@dataclass(frozen=True)
class Ids:
    """A list of N ids, as an array of their upper halves and one of their lower halves: uint64 [N] each."""

    high: np.ndarray
    low: np.ndarray

    def __len__(self) -> int:
        return len(self.high)

    def __getitem__(self, rows: np.ndarray | slice) -> Ids:
        return Ids(self.high[rows], self.low[rows])

    def text(self, row: int) -> str:
        """Return the id in `row` as 32 hex digits."""
        return f"{int(self.high[row]):016x}{int(self.low[row]):016x}"

    def arrow(self) -> pa.StringArray:
        """Return the ids as a column of strings."""
        return ids_to_arrow(self.high, self.low)

    def equals(self, other: Ids) -> bool:
        """Return True if both lists hold the same ids in the same order."""
        return np.array_equal(self.high, other.high) and np.array_equal(self.low, other.low)


def ids_of(column: pa.Array | pa.ChunkedArray) -> Ids:
    """Parse a column of ids."""
    return Ids(*ids_from_arrow(column))


def joined(lists: list[Ids]) -> Ids:
    """Return one list with the ids of all `lists`."""
    none = np.empty(0, np.uint64)
    return Ids(
        np.concatenate([none, *(one.high for one in lists)]), np.concatenate([none, *(one.low for one in lists)])
    )


def read_ids(url: str, column: str = "id") -> Ids:
    """Read all ids in a column of a partition."""
    return joined([ids_of(table[column]) for table in iterate_shard(url, [column])])


def ids_in_range(url: str, index: int, count: int) -> Ids:
    """Read those ids of a partition that lie in the range `index`, if all possible ids are divided into `count` equal
    ranges (a power of two). Row groups whose statistics rule out such ids are not read.
    """
    width, found = 128 - (count.bit_length() - 1), list[Ids]()
    smallest, largest = f"{index << width:032x}", f"{((index + 1) << width) - 1:032x}"
    with open_shard(url) as shard:
        for group in range(shard.metadata.num_row_groups):
            bounds = shard.metadata.row_group(group).column(0).statistics
            if bounds is None or not bounds.has_min_max or (bounds.max >= smallest and bounds.min <= largest):
                ids = ids_of(read_group(shard, group, url, ["id"])["id"])
                found.append(ids[top_bits(ids.high, count) == index])
    return joined(found)


def contained(some: Ids, ascending: Ids) -> np.ndarray:
    """Return for each of `some` whether it is in `ascending`, a list in ascending order: bool [len(some)]."""
    if not len(ascending):
        return np.zeros(len(some), bool)
    return positions(some, ascending) >= 0


def positions(some: Ids, ascending: Ids) -> np.ndarray:
    """Return the position of each of `some` in a nonempty list in ascending order, or -1: int64 [len(some)]."""
    at = np.searchsorted(ascending.high, some.high)
    while True:  # repeats only if different ids have equal upper halves, which does not occur in real data
        here = np.minimum(at, len(ascending) - 1)
        equal = (ascending.high[here] == some.high) & (at < len(ascending))
        behind = equal & (ascending.low[here] < some.low)
        if not behind.any():
            break
        at = at + behind
    return np.where(equal & (ascending.low[here] == some.low), here, -1)


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the distinct values in ascending order. `np.unique` would import `numpy.ma`, which takes 0.07 s."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def first_difference(expected: Ids, found: Ids) -> str:
    """Return the first difference between two lists of ids as a phrase, or "" if they are equal."""
    if expected.equals(found):
        return ""
    size = min(len(expected), len(found))
    differs = (expected.high[:size] != found.high[:size]) | (expected.low[:size] != found.low[:size])
    row = int(np.argmax(differs)) if differs.any() else size
    should = f"{expected.text(row)} should be" if row < len(expected) else "no more documents should be"
    is_there = f"is {found.text(row)}" if row < len(found) else "is the end of the file"
    return (
        f"has {len(found)} documents instead of {len(expected)}; the first difference is in row {row}, where "
        f"{should} and {is_there}"
    )
