"""A block of the token axis seen at one sequence length: an array of sequences, and where the documents begin in each.

One read for a plain block, and no copy: its sequences are the block, reshaped. Packed and joined sequences are gathered
from the few ranges that hold their pieces. Everything is whole-array numpy; 1-10 ms a million tokens, in the threads that
read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from datakit.loader.pieces import Pieces, groups_of
from datakit.loader.source import TokenSource

GAP = 1 << 16  # ranges nearer than this are read in one go
AT_ONCE = 1 << 17  # tokens gathered at a time: their indices take 3 MB


@dataclass(frozen=True)
class Rows:
    """Sequences side by side. `runs[pointer[s]:pointer[s + 1]]` are the offsets at which sequence s's segments begin."""

    tokens: np.ndarray  # [sequences, length]
    lengths: np.ndarray  # how many are tokens; the rest is padding
    pointer: np.ndarray
    runs: np.ndarray
    loss_mask: np.ndarray | None  # bool [sequences, length], where the source has one
    reads: int  # how many reads it took, and their bytes
    bytes_read: int

    @property
    def nbytes(self) -> int:
        return sum(
            part.nbytes
            for part in (self.tokens, self.lengths, self.pointer, self.runs, self.loss_mask)
            if part is not None
        )


def rows_of_range(source: TokenSource, start: int, stop: int, length: int, pad_id: int, segments: bool) -> Rows:
    """A plain block: the range start..stop-1 in sequences of `length`."""
    sequences = -(-(stop - start) // length)
    read = source.read(start, stop)
    tokens = _padded(read, sequences, length, pad_id)
    lengths = np.full(sequences, length, np.int32)
    lengths[-1] = stop - start - (sequences - 1) * length
    begins = np.arange(sequences, dtype=np.int64) * length
    inner = source.document_borders(start, stop) - start if segments else begins[:0]
    pointer, runs = _runs(np.concatenate([begins, inner[(inner > 0) & (inner < stop - start)]]), sequences, length)
    mask, reads, size = None, 1, read.nbytes
    if source.has_loss_mask:
        mask = source.read_loss_mask(start, stop)
        reads, size = reads + 1, size + mask.nbytes
        mask = _padded(mask, sequences, length, 0)
    return Rows(tokens, lengths, pointer, runs, mask, reads, size)


def rows_of_pieces(source: TokenSource, pieces: Pieces, length: int, pad_id: int, borders: bool) -> Rows:
    """Packed or joined sequences. `borders`: look for documents that begin inside a piece, too."""
    sequence = np.repeat(np.arange(pieces.sequences), np.diff(pieces.pointer))
    filled = np.cumsum(pieces.lengths) - pieces.lengths
    target = sequence * length + filled - filled[pieces.pointer[sequence]]
    spans = _spans(pieces)
    tokens, reads, size = _gather(source.read, spans, pieces, target, (pieces.sequences, length), source.dtype, pad_id)
    begins = [target]
    if borders:
        begins.extend(_inner_borders(source, pieces, target, spans))
    pointer, runs = _runs(np.concatenate(begins), pieces.sequences, length)
    lengths = np.bincount(sequence, pieces.lengths, pieces.sequences).astype(np.int32)
    mask = None
    if source.has_loss_mask:
        shape = (pieces.sequences, length)
        mask, more, extra = _gather(source.read_loss_mask, spans, pieces, target, shape, np.dtype(bool), 0)
        reads, size = reads + more, size + extra
    return Rows(tokens, lengths, pointer, runs, mask, reads, size)


def _padded(values: np.ndarray, sequences: int, length: int, fill: int) -> np.ndarray:
    missing = sequences * length - len(values)
    if missing:
        values = np.concatenate([values, np.full(missing, fill, values.dtype)])
    return values.reshape(sequences, length)


def _runs(begins: np.ndarray, sequences: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(pointer, offsets) from positions on the axis of all sequences laid end to end."""
    begins = np.unique(begins)
    pointer = np.searchsorted(begins, np.arange(sequences + 1) * length)
    return pointer, (begins % length).astype(np.int32)


def _spans(pieces: Pieces) -> list[tuple[int, int]]:
    """The ranges to read: pieces in token order, near ones together."""
    order = np.argsort(pieces.starts, kind="stable")
    starts, ends = pieces.starts[order], np.maximum.accumulate(pieces.starts[order] + pieces.lengths[order])
    if not len(starts):
        return []
    gaps = np.flatnonzero(starts[1:] > ends[:-1] + GAP)
    first, last = np.concatenate([[0], gaps + 1]), np.concatenate([gaps, [len(starts) - 1]])
    return list(zip(starts[first].tolist(), ends[last].tolist(), strict=True))


def _gather(
    read: Callable[[int, int], np.ndarray],
    spans: list[tuple[int, int]],
    pieces: Pieces,
    target: np.ndarray,
    shape: tuple[int, int],
    dtype: np.dtype,
    fill: int,
) -> tuple[np.ndarray, int, int]:
    """(values, reads, bytes): the pieces at their places, `fill` elsewhere."""
    values = np.full(shape[0] * shape[1], fill, dtype)
    size = 0
    for start, stop in spans:
        inside = np.flatnonzero((pieces.starts >= start) & (pieces.starts < stop))
        data = read(start, stop)
        for part in groups_of(pieces.lengths[inside], AT_ONCE):
            some = inside[part]
            lengths = pieces.lengths[some]
            within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            source = np.repeat(pieces.starts[some] - start, lengths) + within
            values[np.repeat(target[some], lengths) + within] = data[source]
        size += data.nbytes
    return values.reshape(shape), len(spans), size


def _inner_borders(
    source: TokenSource, pieces: Pieces, target: np.ndarray, spans: list[tuple[int, int]]
) -> list[np.ndarray]:
    """Where, on the axis of the sequences, documents begin inside pieces."""
    order = np.argsort(pieces.starts, kind="stable")
    starts, ends, places = pieces.starts[order], (pieces.starts + pieces.lengths)[order], target[order]
    found = []
    for start, stop in spans:
        borders = source.document_borders(start, stop)
        holder = np.searchsorted(starts, borders, side="right") - 1
        inside = (holder >= 0) & (borders < ends[holder])
        found.append(places[holder[inside]] + borders[inside] - starts[holder[inside]])
    return found
