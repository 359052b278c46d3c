"""Assembles a batch's tokens from its rows, and derives segments, positions and loss mask from boundaries and padding.

    tokens     int32 [rows, length]   the mixture's pad_id in padding
    segments   int32 [rows, length]   1, 2, ... for the documents in a row, from left to right; 0 in padding
    positions  int32 [rows, length]   position within the segment, from 0; 0 in padding
    loss_mask  bool  [rows, length]   True where the token should be predicted; False in padding

The first token of a segment must not be predicted from another document. So a next-token loss should count token i + 1
only if its mask is set and it is in the same segment as token i. `segments`, `positions` and `loss_mask` are computed
on first use.
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
    """Rows of one step. The module's docstring describes `tokens`, `segments`, `positions` and `loss_mask`. `segments`
    and `positions` raise LoaderError if the loader was made with segments=False.
    """

    step: int
    first_slot: int  # first slot of the global batch
    names: Sequence[str]  # names of the components
    tokens: np.ndarray
    lengths: np.ndarray  # int64 [rows]: number of tokens before the padding
    components: np.ndarray  # int32 [rows]: index of the row's component in `names`; -1 for a row of padding
    run_counts: np.ndarray | None  # int64 [rows]: number of segments in each row; None if segments=False
    run_starts: np.ndarray | None  # int32 [segments]: where each segment starts within its row
    # bool [rows, length]: loss masks of the rows' sources, and False in excluded documents; None if all are True
    source_mask: np.ndarray | None

    def __repr__(self) -> str:
        rows = np.bincount(self.components[self.components >= 0], minlength=len(self.names)).tolist()
        shares = ", ".join(f"{name} {count}" for name, count in zip(self.names, rows, strict=True) if count)
        return (
            f"Batch(step {self.step}, {self.shape[0]} x {self.shape[1]} tokens, {self.padding} padding; rows: {shares})"
        )

    @property
    def shape(self) -> tuple[int, int]:
        rows, length = self.tokens.shape
        return rows, length

    @property
    def padding(self) -> int:
        """Number of positions in this batch that hold padding."""
        return self.tokens.size - int(self.lengths.sum())

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays [rows, length] by name; `segments` and `positions` are left out if segments=False."""
        by_document = () if self.run_counts is None else ("segments", "positions")
        return {name: getattr(self, name) for name in ("tokens", *by_document, "loss_mask")}

    @cached_property
    def segments(self) -> np.ndarray:
        counts, _, sizes = self._runs
        ends = np.cumsum(counts)
        number = np.arange(1, len(sizes) + 1, dtype=np.int32) - np.repeat(ends - counts, counts).astype(np.int32)
        number[ends[self.lengths < self.tokens.shape[1]] - 1] = 0  # in a row with padding, the last run is the padding
        return np.repeat(number, sizes).reshape(self.tokens.shape)

    @cached_property
    def positions(self) -> np.ndarray:
        _, starts, sizes = self._runs
        flat = np.arange(self.tokens.size, dtype=np.int32) - np.repeat(starts.astype(np.int32), sizes)
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
        """Return (number of runs per row, starts of the runs in the flattened batch, sizes of the runs). A run is a
        segment or the padding at the end of a row.
        """
        if self.run_counts is None or self.run_starts is None:
            raise LoaderError("this loader was made with segments=False, so its batches have no segments or positions")
        length = self.tokens.shape[1]
        padded = np.flatnonzero(self.lengths < length)
        row = np.repeat(np.arange(len(self.lengths)), self.run_counts)
        starts = np.unique(np.concatenate([row * length + self.run_starts, padded * length + self.lengths[padded]]))
        counts = self.run_counts.copy()
        counts[padded] += self.lengths[padded] > 0
        return counts, starts, np.diff(np.append(starts, self.tokens.size))


def empty_batch(step: int, rows: int, length: int, names: Sequence[str], view: View) -> Batch:
    """Make batch `step` in which all rows are marked as padding and all tokens are uninitialized."""
    return Batch(
        step=step,
        first_slot=0,
        names=names,
        tokens=np.empty((rows, length), np.int32),
        lengths=np.zeros(rows, np.int64),
        components=np.full(rows, -1, np.int32),
        run_counts=np.ones(rows, np.int64) if view.segments else None,
        run_starts=None,
        source_mask=None,
    )


def fill(batch: Batch, picks: Sequence[Pick], sources: Sequence[Rows], resident: Sequence[bool], view: View) -> None:
    """Copy the picked rows into the batch. `sources` holds, for each row in the order of the picks, the `Rows` object
    that contains it. `resident` holds, for each stream, True if it is read in whole blocks, and False if its
    sequences are read one at a time.
    """
    runs: list[np.ndarray] = [_NO_DOCUMENT] * len(batch.tokens)
    reads = iter(sources)
    for pick in picks:
        batch.components[pick.rows] = pick.stream
        batch.lengths[pick.rows] = batch.tokens.shape[1]
        whole = resident[pick.stream]
        for sequence, row in zip(pick.sequences.tolist(), pick.rows.tolist(), strict=True):
            rows, at = next(reads), sequence if whole else 0
            _copy_row(batch, row, rows, at)
            if view.segments:
                runs[row] = rows.runs[rows.pointer[at] : rows.pointer[at + 1]]
    if len(sources) < len(batch.tokens):
        batch.tokens[batch.components < 0] = view.pad_id
    if view.segments:
        batch.run_counts, batch.run_starts = np.array([len(run) for run in runs]), np.concatenate(runs)


def _copy_row(batch: Batch, row: int, rows: Rows, at: int) -> None:
    batch.tokens[row] = rows.tokens[at]
    if not rows.full:
        batch.lengths[row] = rows.lengths[at]
    if rows.loss_mask is not None:
        _mask(batch)[row] = rows.loss_mask[at]
    if rows.excluded_from is not None and (excluded := rows.excluded_from[at] <= batch.step).any():
        _mask(batch)[row] &= ~excluded


def _mask(batch: Batch) -> np.ndarray:
    if batch.source_mask is None:
        batch.source_mask = np.ones(batch.tokens.shape, bool)
    return batch.source_mask


_NO_DOCUMENT = np.zeros(1, np.int32)
