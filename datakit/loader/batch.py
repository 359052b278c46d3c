"""A batch: tokens, and what a model needs to know of them. Derived arrays are made when first asked for.

    tokens     int32 [rows, length]   padding holds the mixture's pad_id
    segments   int32 [rows, length]   1, 2, ... for the documents in a row, from left to right; 0 is padding
    positions  int32 [rows, length]   position within the segment, from 0
    loss_mask  bool  [rows, length]   True: this token is one to be predicted; never for padding

A token that begins a segment has nothing to be predicted from: a loss over next tokens counts token i + 1 where its
mask is set and its segment is that of token i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from datakit.errors import LoaderError
from datakit.loader.rows import Rows


@dataclass
class Batch:
    """See the module. `components` holds the number of each row's component in `names`, -1 for a row of padding."""

    step: int
    first_slot: int  # of the whole batch, on all hosts
    names: Sequence[str]
    tokens: np.ndarray
    lengths: np.ndarray  # int64: real tokens of each row; they come first
    components: np.ndarray
    run_counts: np.ndarray | None  # segments of each row, and where each begins; None where they were not asked for
    run_starts: np.ndarray | None
    source_mask: np.ndarray | None  # the loss mask of the sources, where one has it

    @property
    def shape(self) -> tuple[int, int]:
        rows, length = self.tokens.shape
        return rows, length

    @property
    def padding(self) -> int:
        """Slots of this batch that hold no token."""
        return self.tokens.size - int(self.lengths.sum())

    @cached_property
    def segments(self) -> np.ndarray:
        counts, _, sizes = self._runs
        number = (
            np.arange(len(sizes), dtype=np.int32) - np.repeat(np.cumsum(counts) - counts, counts).astype(np.int32) + 1
        )
        last = np.cumsum(counts) - 1  # the last run of a row that is not full is its padding
        number[last[self.lengths < self.tokens.shape[1]]] = 0
        return np.repeat(number, sizes).reshape(self.tokens.shape)

    @cached_property
    def positions(self) -> np.ndarray:
        _, begins, sizes = self._runs
        flat = np.arange(self.tokens.size, dtype=np.int32) - np.repeat(begins.astype(np.int32), sizes)
        return flat.reshape(self.tokens.shape)

    @cached_property
    def loss_mask(self) -> np.ndarray:
        real = np.arange(self.tokens.shape[1]) < self.lengths[:, None]
        return real if self.source_mask is None else real & self.source_mask

    @cached_property
    def _runs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(runs a row, where each begins on the flattened batch, its size), the padding of a row being a run too."""
        if self.run_counts is None or self.run_starts is None:
            raise LoaderError("this loader was made with segments=False; it does not look up document borders")
        length = self.tokens.shape[1]
        padded = np.flatnonzero(self.lengths < length)
        row = np.repeat(np.arange(len(self.lengths)), self.run_counts)
        begins = np.concatenate([row * length + self.run_starts, padded * length + self.lengths[padded]])
        begins = np.unique(begins)
        counts = self.run_counts.copy()
        counts[padded] += self.lengths[padded] > 0
        return counts, begins, np.diff(np.append(begins, self.tokens.size))


@dataclass(frozen=True)
class Served:
    """One row's origin: its component, the block it is in, and which sequence there."""

    component: int
    rows: Rows
    sequence: int


def assemble(
    step: int,
    first_slot: int,
    names: Sequence[str],
    served: Sequence[Served | None],
    length: int,
    pad_id: int,
    segments: bool,
) -> Batch:
    """Rows side by side: one copy a row. None is a row of padding."""
    tokens = np.empty((len(served), length), np.int32)
    lengths = np.zeros(len(served), np.int64)
    components = np.full(len(served), -1, np.int32)
    runs, mask = [], None
    for i, row in enumerate(served):
        if row is None:
            tokens[i] = pad_id
            runs.append(_NO_DOCUMENT)
            continue
        rows, sequence = row.rows, row.sequence
        tokens[i] = rows.tokens[sequence]
        lengths[i] = rows.lengths[sequence]
        components[i] = row.component
        if segments:
            runs.append(rows.runs[rows.pointer[sequence] : rows.pointer[sequence + 1]])
        if rows.loss_mask is not None:
            mask = np.ones(tokens.shape, bool) if mask is None else mask
            mask[i] = rows.loss_mask[sequence]
    counts = np.array([len(run) for run in runs], np.int64) if segments else None
    starts = np.concatenate([_NO_DOCUMENT[:0], *runs]) if segments else None
    return Batch(step, first_slot, names, tokens, lengths, components, counts, starts, mask)


_NO_DOCUMENT = np.zeros(1, np.int32)
