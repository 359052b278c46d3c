"""Reads the sequences of a block as arrays (tokens, loss mask, segment starts), and gathers packed and joined pieces.

A plain block requires one read, or two with a loss mask. The block is reshaped into sequences; tokens are copied only
if the last sequence needs padding. The pieces of packed and joined sequences are gathered from the few ranges that
contain them, by numpy operations on whole arrays in the reading threads; this takes 1-20 ms per million tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from datakit.loader.sources.ranges import Pieces, groups_of
from datakit.loader.sources.token_source import TokenSource

GAP = 1 << 16  # in tokens; ranges with at most this gap between them are read together
AT_ONCE = 1 << 17  # number of tokens gathered at a time; their indices take 3 MB


@dataclass(frozen=True)
class View:
    """Options for reading a block: the token used for padding, and whether to look up document boundaries."""

    pad_id: int
    segments: bool


@dataclass(frozen=True)
class Rows:
    """Sequences of equal length. The segments of sequence s start at offsets `runs[pointer[s] : pointer[s + 1]]`."""

    tokens: np.ndarray  # uint16 or uint32 [sequences, length]
    lengths: np.ndarray  # int32 [sequences]: number of tokens before the padding
    full: bool  # True if no sequence has padding
    pointer: list[int]
    runs: np.ndarray  # int32
    loss_mask: np.ndarray | None  # bool [sequences, length]; None if the source has no loss mask
    reads: int
    bytes_read: int
    # int32 [sequences, length]: the batch from which on each token is excluded; None if none of them ever is
    excluded_from: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        parts = (self.tokens, self.lengths, self.runs, self.loss_mask, self.excluded_from)
        return sum(part.nbytes for part in parts if part is not None) + 40 * len(self.pointer)


class Excluded(Protocol):
    """The tokens of a source that belong to excluded documents; `exclusions.py` implements it."""

    def touch(self, start: int, stop: int) -> bool: ...

    def read(self, start: int, stop: int) -> np.ndarray: ...


def rows_of_range(
    source: TokenSource, start: int, stop: int, length: int, view: View, *, excluded: Excluded | None = None
) -> Rows:
    """Read the range start..stop-1, which is a plain block, as sequences of `length` tokens."""
    sequences = -(-(stop - start) // length)
    read = source.read(start, stop)
    lengths = np.full(sequences, length, np.int32)
    lengths[-1] = stop - start - (sequences - 1) * length
    starts = np.arange(sequences, dtype=np.int64) * length
    if view.segments:
        inner = source.document_borders(start, stop) - start
        starts = np.concatenate([starts, inner[(inner > 0) & (inner < stop - start)]])
    pointer, runs = _runs(starts, sequences, length)
    tokens, mask, reads, size = _padded(read, sequences, length, view.pad_id), None, 1, read.nbytes
    if source.has_loss_mask:
        mask = _padded(source.read_loss_mask(start, stop), sequences, length, 0)
        reads, size = 2, size + stop - start
    steps = None
    if excluded is not None and excluded.touch(start, stop):
        steps = _padded(excluded.read(start, stop), sequences, length, 0)
    return Rows(tokens, lengths, int(lengths.min()) == length, pointer, runs, mask, reads, size, steps)


def rows_of_pieces(
    source: TokenSource,
    pieces: Pieces,
    length: int,
    view: View,
    *,
    whole_documents: bool,
    excluded: Excluded | None = None,
) -> Rows:
    """Read packed or joined sequences. If `whole_documents` is True, documents start only at the starts of pieces."""
    sequence = np.repeat(np.arange(pieces.sequences), np.diff(pieces.pointer))
    filled = np.cumsum(pieces.lengths) - pieces.lengths
    places = sequence * length + filled - filled[pieces.pointer[sequence]]
    gather = _Gather(pieces, places, _spans(pieces), (pieces.sequences, length))
    tokens, size = gather.read(source.read, source.dtype, view.pad_id)
    starts = [places]
    if view.segments and not whole_documents:
        starts.extend(gather.inner_borders(source))
    pointer, runs = _runs(np.concatenate(starts), pieces.sequences, length)
    lengths = np.bincount(sequence, pieces.lengths, pieces.sequences).astype(np.int32)
    mask, reads = None, len(gather.spans)
    if source.has_loss_mask:
        mask, more = gather.read(source.read_loss_mask, np.dtype(bool), 0)
        reads, size = 2 * reads, size + more
    steps = None
    if excluded is not None and any(excluded.touch(start, stop) for start, stop in gather.spans):
        steps, _ = gather.read(excluded.read, np.dtype(np.int32), 0)
    return Rows(tokens, lengths, int(lengths.min()) == length, pointer, runs, mask, reads, size, steps)


def _padded(values: np.ndarray, sequences: int, length: int, fill: int) -> np.ndarray:
    missing = sequences * length - len(values)
    if missing:
        values = np.concatenate([values, np.full(missing, fill, values.dtype)])
    return values.reshape(sequences, length)


def _runs(starts: np.ndarray, sequences: int, length: int) -> tuple[list[int], np.ndarray]:
    """Return (pointer, offsets within sequences) for segment starts on the axis of all sequences laid end to end."""
    starts = np.unique(starts)
    pointer = np.searchsorted(starts, np.arange(sequences + 1) * length)
    return pointer.tolist(), (starts % length).astype(np.int32)


def _spans(pieces: Pieces) -> list[tuple[int, int]]:
    """Return the ranges to read: the pieces in token order, merged where the gap between them is at most GAP."""
    order = np.argsort(pieces.starts, kind="stable")
    starts, ends = pieces.starts[order], np.maximum.accumulate(pieces.starts[order] + pieces.lengths[order])
    gaps = np.flatnonzero(starts[1:] > ends[:-1] + GAP)
    first, last = np.concatenate([[0], gaps + 1]), np.concatenate([gaps, [len(starts) - 1]])
    return list(zip(starts[first].tolist(), ends[last].tolist(), strict=True))


@dataclass(frozen=True)
class _Gather:
    """Pieces, their positions on the axis of all sequences laid end to end, and the ranges to read them from."""

    pieces: Pieces
    places: np.ndarray
    spans: list[tuple[int, int]]
    shape: tuple[int, int]

    def read(self, read: Callable[[int, int], np.ndarray], dtype: np.dtype, fill: int) -> tuple[np.ndarray, int]:
        """Return (values, number of bytes read). values: [sequences, length], with `fill` where there is no piece."""
        values, size = np.full(self.shape[0] * self.shape[1], fill, dtype), 0
        for start, stop in self.spans:
            data = read(start, stop)
            size += data.nbytes
            inside = np.flatnonzero((self.pieces.starts >= start) & (self.pieces.starts < stop))
            for part in groups_of(self.pieces.lengths[inside], AT_ONCE):
                some = inside[part]
                lengths = self.pieces.lengths[some]
                within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                at = np.repeat(self.pieces.starts[some] - start, lengths) + within
                values[np.repeat(self.places[some], lengths) + within] = data[at]
        return values.reshape(self.shape), size

    def inner_borders(self, source: TokenSource) -> list[np.ndarray]:
        """Return the document starts inside pieces, as positions on the axis of all sequences laid end to end."""
        order = np.argsort(self.pieces.starts, kind="stable")
        starts, lengths, places = self.pieces.starts[order], self.pieces.lengths[order], self.places[order]
        found = []
        for start, stop in self.spans:
            borders = source.document_borders(start, stop)
            holder = np.maximum(0, np.searchsorted(starts, borders, side="right") - 1)
            offset = borders - starts[holder]
            inside = (offset >= 0) & (offset < lengths[holder])
            found.append(places[holder[inside]] + offset[inside])
        return found
