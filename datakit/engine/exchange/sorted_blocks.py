"""Sorts more rows than fit in memory: keeps sorted blocks of rows in scratch files, and merges them window by window.

The caller adds blocks whose rows are already sorted, or uses `sort_rows`. A single block stays in memory. If there are
more, each is written to an unlinked scratch file and memory-mapped. The merge cuts all blocks at the same keys. It
takes the rows up to the next cut from all blocks and sorts them: this is a window. The cuts are chosen from samples,
one key for every SAMPLE_BYTES of a block, so a window takes about WINDOW_BYTES plus SAMPLE_BYTES per block, whatever
the distribution of the keys. If a key fills several samples, its rows are yielded block by block without sorting,
because they are already in order.

Cost: with several blocks, the rows are written and read once and sorted twice. Memory: one block or one window, and a
key for every SAMPLE_BYTES.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from datakit.engine.exchange.run_file import map_file, windows
from datakit.storage.io_errors import scratch_errors
from datakit.storage.row_size import row_sizes

BLOCK_BYTES = 32 << 20  # sorting a block takes about four times as much memory
WINDOW_BYTES = 16 << 20
SAMPLE_BYTES = 64 << 10


class SortedBlocks:
    """Rows in the order of the columns `keys` (numbers without nulls). Rows with equal keys keep the order in which
    they were added. In each block, every column must have a single chunk, with 64-bit offsets if the block may exceed 2
    GiB.
    """

    def __init__(self, keys: Sequence[str], scratch: Path) -> None:
        self._keys, self._scratch = list(keys), scratch
        self._blocks: list[pa.Table] = []
        self._samples: list[pa.Table] = []
        self.count: int = 0  # number of rows

    def add(self, block: pa.Table) -> None:
        """Add rows that are sorted by the keys. Raises NoSpaceError."""
        if not block.num_rows:
            return
        if len(self._blocks) == 1:
            self._blocks[0] = self._spilled(self._blocks[0])
        ends = np.cumsum(row_sizes(block))
        at = np.searchsorted(ends, np.arange(SAMPLE_BYTES, ends[-1], SAMPLE_BYTES))
        self._samples.append(block.select(self._keys).take(pa.array(at)))
        self._blocks.append(self._spilled(block) if self._blocks else block)
        self.count += block.num_rows

    def merged(self) -> Iterator[pa.Table]:
        """Yield all rows in order, in tables of about WINDOW_BYTES. May be called again."""
        if len(self._blocks) < 2:
            for block in self._blocks:
                yield from self._slices(block)
            return
        starts = [0] * len(self._blocks)
        for key, repeats in self._cuts():
            stops, ends = zip(*(self._range(block, key) for block in self._blocks), strict=True)
            yield from self._sorted(starts, stops)
            starts = list(ends if repeats else stops)
            if repeats:
                for block, start, stop in zip(self._blocks, stops, ends, strict=True):
                    yield from self._slices(block.slice(start, stop - start))
        yield from self._sorted(starts, [block.num_rows for block in self._blocks])

    def _spilled(self, block: pa.Table) -> pa.Table:
        path = self._scratch / f"block-{uuid.uuid4().hex}"
        try:
            with (
                scratch_errors(path),
                pa.OSFile(str(path), "wb") as sink,
                pa.ipc.new_stream(sink, block.schema) as writer,
            ):
                writer.write_table(block.combine_chunks())
            return pa.ipc.open_stream(map_file(str(path), 0, path.stat().st_size)).read_all()
        finally:
            path.unlink(missing_ok=True)  # the memory map keeps the bytes until the block is freed

    def _cuts(self) -> Iterator[tuple[list[np.ndarray], bool]]:
        """Yield ascending keys at which the blocks are cut, each with True if several samples have this key."""
        samples = sorted_rows(pa.concat_tables(self._samples), self._keys)
        columns = _columns(samples, self._keys)
        places = np.arange(0, samples.num_rows, max(1, WINDOW_BYTES // SAMPLE_BYTES))
        changes = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
        group = np.concatenate([[0], np.cumsum(changes)])
        counts = np.bincount(group)
        for place in places[np.diff(group[places], prepend=-1) != 0]:
            yield [column[place : place + 1] for column in columns], bool(counts[group[place]] > 1)

    def _range(self, block: pa.Table, key: list[np.ndarray]) -> tuple[int, int]:
        """Return the first row whose key is at least `key`, and the first row whose key is greater."""
        first, stop = 0, block.num_rows
        for column, value in zip(_columns(block, self._keys), key, strict=True):
            inside = column[first:stop]
            first, stop = (first + int(np.searchsorted(inside, value, side)[0]) for side in ("left", "right"))
        return first, stop

    def _sorted(self, starts: Sequence[int], stops: Sequence[int]) -> Iterator[pa.Table]:
        spans = zip(self._blocks, starts, stops, strict=True)
        parts = [block.slice(start, stop - start) for block, start, stop in spans if stop > start]
        if parts:
            yield parts[0] if len(parts) == 1 else sorted_rows(pa.concat_tables(parts), self._keys)

    def _slices(self, table: pa.Table) -> Iterator[pa.Table]:
        for first, stop in windows(row_sizes(table), WINDOW_BYTES):
            yield table.slice(first, stop - first)


def sort_rows(tables: Iterable[pa.Table], keys: Sequence[str], scratch: Path) -> SortedBlocks:
    """Sort rows by the columns `keys`. The tables should be small: they are collected until they fill a block."""
    blocks, pending, size = SortedBlocks(keys, scratch), list[pa.Table](), 0
    for table in tables:
        for first, stop in windows(row_sizes(table), BLOCK_BYTES):
            pending.append(table.slice(first, stop - first))
            size += int(row_sizes(pending[-1]).sum())
            if size >= BLOCK_BYTES:
                blocks.add(sorted_rows(pa.concat_tables(pending), keys))
                pending, size = [], 0
    if pending:
        blocks.add(sorted_rows(pa.concat_tables(pending), keys))
    return blocks


def sorted_rows(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows of a table, sorted by the columns `keys`. Rows with equal keys keep their order."""
    table = table.combine_chunks()
    return table.take(pa.array(stable_order(_columns(table, keys)))).combine_chunks()


def stable_order(keys: Sequence[np.ndarray]) -> np.ndarray:
    """Return the permutation, int64 [N], that sorts N rows by several keys; rows with equal keys keep their order.

    Usually the first key decides the order, and sorting by it alone takes half the time. If the rows are a
    concatenation of sorted sequences, the sort amounts to a merge.
    """
    order = np.argsort(keys[0], kind="stable")
    tied = np.flatnonzero(keys[0][order[1:]] == keys[0][order[:-1]])
    decided = all(np.array_equal(key[order[tied]], key[order[tied + 1]]) for key in keys[1:])
    return order if decided else np.lexsort(keys[::-1])


def _columns(table: pa.Table, keys: Sequence[str]) -> list[np.ndarray]:
    return [table.column(name).to_numpy() for name in keys]
