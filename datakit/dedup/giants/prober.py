"""Compares the documents of a block with those retained in an earlier one, in arrays that are mapped to scratch files.

The retained documents are read from their block. They fill the first part of the arrays, and are indexed once. The
documents of the later block are copied behind them batch by batch, so they need no sorting and no scratch space of
their own. Memory: the outcomes of one batch, a few MiB. Scratch space: the retained documents, and about 1 kB for each
of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.dedup.giants.kernels import Answers, Names, list_retained, probe_documents
from datakit.dedup.giants.retained import schema
from datakit.dedup.verification.arrays import NONE, Documents, no_earlier
from datakit.dedup.verification.kernels import copy_lists
from datakit.dedup.verification.outcomes import WORDS
from datakit.dedup.verification.rules import Rules
from datakit.dedup.verification.run_kernels import empty_index, empty_proposals, scratch_array
from datakit.storage.stale_files import scratch_directory

OUTCOME_WORDS = 1 << 18  # words of outcomes that are collected at a time, unless one document may need more


def answer_schema(bands: int) -> pa.Schema:
    """Return the schema of answers. document: the number of a document, in the order in which the rows of its block are
    read. retained, words: see `Answers`.
    """
    lists = [pa.field("retained", pa.list_(pa.uint16(), bands)), pa.field("words", pa.large_list(pa.uint64()))]
    return pa.schema([pa.field("document", pa.int64()), *lists])


class Block(NamedTuple):
    """The documents of an earlier block, and which of them are retained (rows with the schema of `retained.py`)."""

    documents: Sequence[pa.RecordBatch]
    retained: Sequence[pa.RecordBatch]


class Prober:
    """Answers questions about documents. candidates: the number of candidates found so far."""

    def __init__(self, block: Block, batches: Sequence[pa.RecordBatch], rules: Rules, scratch: Path) -> None:
        """batches: those that `answers` will get."""
        self._rows, self._most = _rows(block.retained), max((batch.num_rows for batch in batches), default=0)
        self._bands, self._rules = block.retained[0].schema.field("retained").type.list_size, rules
        rows, bands, tail = self._rows, self._bands, max((_lengths(batch).sum() for batch in batches), default=0)
        place = self._places(block, scratch)
        offsets = scratch_array(scratch / "offsets", (rows + self._most + 1,), np.int64)
        for batch, places in _with_places(block, place):
            offsets[1 + places[places >= 0]] = _lengths(batch)[places >= 0]
        np.cumsum(offsets[: rows + 1], out=offsets[: rows + 1])
        self._names = Names(*(scratch_array(scratch / name, (rows,), np.uint64) for name in Names._fields))
        self._documents = Documents(
            starts=np.array([0, rows]),
            offsets=offsets,
            shingles=scratch_array(scratch / "shingles", (int(offsets[rows] + tail),), np.uint64),
            keys=scratch_array(scratch / "keys", (rows + self._most, bands), np.uint64),
            rank=scratch_array(scratch / "rank", (rows,), np.int64),
            by_rank=scratch_array(scratch / "by-rank", (rows,), np.int64),
        )
        candidates = min(rows, bands * rules.listed)
        self._index, self._proposals = empty_index(rows, bands, scratch), empty_proposals(rows, candidates, scratch)
        self._answers = Answers(
            np.empty(max(OUTCOME_WORDS, 2 * WORDS * (candidates + 1)), np.uint64),
            np.empty(self._most, np.int64),
            np.empty((self._most, bands), np.uint16),
        )
        self._counts = np.zeros(1, np.int64)
        self._add(block, place, scratch)

    @property
    def candidates(self) -> int:
        """The number of candidates found so far."""
        return int(self._counts[0])

    def _places(self, block: Block, scratch: Path) -> np.ndarray:
        """Return the position of each document of the block among the retained ones, or NONE: int64 [N]."""
        place, at = scratch_array(scratch / "place", (_rows(block.documents),), np.int64), 0
        place[:] = NONE
        for batch in block.retained:
            place[batch["document"].to_numpy()] = np.arange(at, at + batch.num_rows)
            at += batch.num_rows
        return place

    def _add(self, block: Block, place: np.ndarray, scratch: Path) -> None:
        """Copy the retained documents of the block, and add them to the index."""
        counts, at = scratch_array(scratch / "retained", (self._rows, self._bands), np.uint16), 0
        documents, rank = self._documents, self._documents.rank
        for batch in block.retained:
            stop = at + batch.num_rows
            rank[at:stop] = batch["rank"].to_numpy()
            counts[at:stop] = np.asarray(batch["retained"].flatten()).reshape(-1, self._bands)
            documents.by_rank[rank[at:stop]] = np.arange(at, stop)
            at = stop
        for batch, places in _with_places(block, place):
            kept = places >= 0
            for name, values in self._names._asdict().items():
                values[places[kept]] = batch[name].to_numpy()[kept]
            documents.keys[places[kept]] = np.asarray(batch["keys"].flatten()).reshape(-1, self._bands)[kept]
            lists = batch["shingles"]
            copy_lists(
                np.asarray(lists.values), np.asarray(lists.offsets), documents.shingles, documents.offsets, places
            )
        earlier = no_earlier()._replace(retained=counts)
        list_retained(documents, earlier, self._rules.listed, self._index)

    def _copy(self, batch: pa.RecordBatch) -> None:
        """Copy the band keys and shingles of some documents behind those of the retained ones."""
        offsets, at, stop = self._documents.offsets, self._rows, self._rows + batch.num_rows
        offsets[at + 1 : stop + 1] = offsets[at] + np.cumsum(_lengths(batch))
        self._documents.shingles[offsets[at] : offsets[stop]] = np.asarray(batch["shingles"].flatten())
        self._documents.keys[at:stop] = np.asarray(batch["keys"].flatten()).reshape(-1, self._bands)

    def answers(self, batch: pa.RecordBatch, number: int) -> Iterator[pa.Table]:
        """Yield what a batch of documents needs to know about the retained ones. number: that of its first document."""
        self._copy(batch)
        first, last = self._rows, self._rows + batch.num_rows
        while first < last:
            stop = probe_documents(
                first,
                last,
                number + first - self._rows,
                self._documents,
                self._names,
                no_earlier(),
                self._rules,
                self._rules.listed,
                self._index,
                self._proposals,
                self._answers,
                self._counts,
            )
            yield self._table(first - self._rows, stop - self._rows, number)
            first = stop

    def _table(self, first: int, stop: int, number: int) -> pa.Table:
        """Return the answers about documents [first, stop) of the batch that share a band key with a retained one."""
        retained, ends = self._answers.retained[first:stop], self._answers.ends[first:stop]
        some = np.flatnonzero(retained.any(axis=1))
        offsets = np.concatenate([[0], np.cumsum(np.diff(ends, prepend=0)[some])])
        lists = [
            pa.FixedSizeListArray.from_arrays(pa.array(retained[some].reshape(-1)), self._bands),
            pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(self._answers.words[: offsets[-1]].copy())),
        ]
        return pa.table([number + first + some, *lists], schema=answer_schema(self._bands))


def _rows(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def _lengths(batch: pa.RecordBatch) -> np.ndarray:
    """Return the number of shingles of each document."""
    return pc.call_function("list_value_length", [batch["shingles"]]).to_numpy()


def _with_places(block: Block, place: np.ndarray) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """Yield the documents of a block, with their positions among the retained ones."""
    first = 0
    for batch in block.documents:
        yield batch, place[first : first + batch.num_rows]
        first += batch.num_rows


def warm() -> None:
    """Load the kernels from numba's cache, or compile them, so that no task has to do so."""
    one = pa.array([1], pa.uint64())
    keys, shingles = pa.FixedSizeListArray.from_arrays(one, 1), pa.LargeListArray.from_arrays(pa.array([0, 1]), one)
    names = [*Names._fields, "keys", "shingles"]
    document = pa.RecordBatch.from_arrays([one, one, one, keys, shingles], names)
    before = pa.FixedSizeListArray.from_arrays(pa.array([0], pa.uint16()), 1)
    retained = pa.RecordBatch.from_arrays([pa.array([0]), pa.array([0]), before], schema=schema(1))
    with scratch_directory() as folder:
        list(Prober(Block([document], [retained]), [document], Rules(1.0, 0, 1), folder).answers(document, 0))
