"""A batch: tokens, and what a model needs to know of them. Derived arrays are made when first asked for.

    tokens     int32 [rows, length]   padding holds the mixture's pad_id
    segments   int32 [rows, length]   1, 2, ... for the documents in a row, from left to right; 0 is padding
    positions  int32 [rows, length]   position within the segment, from 0; 0 in padding
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
from datakit.loader.mixture.sequence_order import Pick
from datakit.loader.sources.rows import Rows, View


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

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything by name, for a framework that wants a dictionary."""
        names = (
            ("tokens", "segments", "positions", "loss_mask") if self.run_counts is not None else ("tokens", "loss_mask")
        )
        return {name: getattr(self, name) for name in names}

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
        if self.padding:
            flat[self.segments.reshape(-1) == 0] = 0
        return flat.reshape(self.tokens.shape)

    @cached_property
    def loss_mask(self) -> np.ndarray:
        if self.lengths.min(initial=self.tokens.shape[1]) == self.tokens.shape[1]:
            return np.ones(self.tokens.shape, bool) if self.source_mask is None else self.source_mask
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


def empty_batch(rows: int, length: int, names: Sequence[str], view: View) -> Batch:
    """A batch of padding; its tokens are not written yet."""
    return Batch(
        step=0,
        first_slot=0,
        names=names,
        tokens=np.empty((rows, length), np.int32),
        lengths=np.zeros(rows, np.int64),
        components=np.full(rows, -1, np.int32),
        run_counts=np.ones(rows, np.int64) if view.segments else None,
        run_starts=None,
        source_mask=None,
    )


def fill(batch: Batch, picks: Sequence[Pick], sources: Sequence[Rows], resident: Sequence[bool], view: View) -> Batch:
    """Put the picked rows in their places, one copy each. `sources` has what holds each row, in the order of the picks.

    `resident` says of each stream whether that is a whole unit, or the row alone.
    """
    tokens, length = batch.tokens, batch.tokens.shape[1]
    runs: list[np.ndarray] = [_NO_DOCUMENT] * len(tokens)
    holders = iter(sources)
    for pick in picks:
        batch.components[pick.rows] = pick.stream
        batch.lengths[pick.rows] = length
        whole = resident[pick.stream]
        for sequence, row in zip(pick.sequences.tolist(), pick.rows.tolist(), strict=True):
            rows, at = next(holders), sequence if whole else 0
            tokens[row] = rows.tokens[at]
            if not rows.full:
                batch.lengths[row] = rows.lengths[at]
            if view.segments:
                runs[row] = rows.runs[rows.pointer[at] : rows.pointer[at + 1]]
            if rows.loss_mask is not None:
                if batch.source_mask is None:
                    batch.source_mask = np.ones(tokens.shape, bool)
                batch.source_mask[row] = rows.loss_mask[at]
    if len(sources) < len(tokens):
        tokens[batch.components < 0] = view.pad_id
    if view.segments:
        batch.run_counts, batch.run_starts = np.array([len(run) for run in runs]), np.concatenate(runs)
    return batch


_NO_DOCUMENT = np.zeros(1, np.int32)
