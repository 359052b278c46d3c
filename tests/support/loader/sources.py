"""Sources for tests of the loader. Token n has the value n, so what was read tells where it was."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np

from datakit.loader import ArraySource, Batch
from datakit.loader.mixture.stream import Stream


class WatchedSource(ArraySource):
    """One document that counts its reads. It can wait until `overlap` reads run at once, and fail."""

    def __init__(self, tokens: np.ndarray) -> None:
        super().__init__(tokens, [len(tokens)])
        self.reads, self.broken, self.overlap = 0, False, 1
        self.overlapped = threading.Event()
        self._reading, self._lock = 0, threading.Lock()

    def read(self, start: int, stop: int) -> np.ndarray:
        with self._lock:
            self._reading += 1
            self.reads += 1
            if self._reading >= self.overlap:
                self.overlapped.set()
        if not self.overlapped.wait(60):
            raise AssertionError(f"{self.overlap} reads never ran at once")
        with self._lock:
            self._reading -= 1
        if self.broken:
            raise OSError("the disk is on fire")
        return super().read(start, stop).copy()


def counting(lengths: Sequence[int]) -> ArraySource:
    """Documents of these lengths over the tokens 0, 1, 2, ..."""
    return ArraySource(np.arange(sum(lengths), dtype=np.uint32), lengths)


def documents_of(texts: Iterable[Sequence[int]]) -> ArraySource:
    """Documents with these tokens."""
    texts = list(texts)
    return ArraySource(np.concatenate([np.array(text, np.uint32) for text in texts]), [len(text) for text in texts])


def random_lengths(seed: int, count: int, longest: int) -> list[int]:
    """`count` lengths from 1 to `longest`."""
    return np.random.default_rng(seed).integers(1, longest + 1, count).tolist()


def real_tokens(batch: Batch, component: int | None = None) -> np.ndarray:
    """The tokens of a batch that are not padding, of one component or of all."""
    rows = range(len(batch.lengths)) if component is None else np.flatnonzero(batch.components == component)
    return np.concatenate([np.zeros(0, np.int32), *(batch.tokens[row, : batch.lengths[row]] for row in rows)])


def served_tokens(stream: Stream, first: int, last: int) -> tuple[np.ndarray, int]:
    """(positions, padding) of sequences first..last-1 of a component, in the order in which they are served."""
    positions, padding = [np.zeros(0, np.int64)], 0
    for sequence in range(first, last):
        window = stream.window_at(sequence)
        units, rows = window.at(np.array([sequence - window.first]))
        unit = window.units[int(units[0])]
        pieces = stream.reader.pieces_of(unit).take(rows)
        assert 0 < pieces.lengths.sum() <= unit.length
        padding += unit.length - int(pieces.lengths.sum())
        positions.extend(np.arange(a, a + n) for a, n in zip(pieces.starts, pieces.lengths, strict=True))
    return np.concatenate(positions), padding
