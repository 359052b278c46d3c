"""What the loader reads from: a long axis of tokens, the borders of the documents on it, and a name for its content.

`TokenSource` is the whole contract; the token cache fulfils it (`cache_source.py`), so does an array in memory, and so
does a selection of ranges of another source. Sequence length is none of its business: a length is a view that the
loader takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import xxhash

from datakit.errors import LoaderError


@runtime_checkable
class TokenSource(Protocol):
    """An axis of tokens. Methods may be called from several threads at once."""

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """uint16, or uint32 with ids below 2^31."""
        ...

    @property
    def identity(self) -> str:
        """A hash of the content: two sources with the same one hold the same tokens in the same order."""
        ...

    @property
    def has_loss_mask(self) -> bool:
        """Whether each token says if a model shall learn to predict it."""
        ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """The tokens start..stop-1: one contiguous read, an array that the caller owns."""
        ...

    def read_loss_mask(self, start: int, stop: int) -> np.ndarray:
        """The loss mask of the tokens start..stop-1, as bool; only where `has_loss_mask`."""
        ...

    def document_borders(self, start: int, stop: int) -> np.ndarray:
        """Where the documents that touch start..stop-1 begin, ascending, and, last, where the last of them ends.

        int64; the first border is at or before `start`, the last at or after `stop`. Empty documents leave no border.
        """
        ...


class ArraySource:
    """Tokens in memory: for tests, small caches, and anything that fits."""

    def __init__(
        self, tokens: np.ndarray, lengths: Sequence[int] | np.ndarray | None = None, loss_mask: np.ndarray | None = None
    ) -> None:
        self._array = tokens.view() if tokens.dtype in (np.uint16, np.uint32) else tokens.astype(np.uint32)
        self._array.flags.writeable = False
        counts = np.array([len(tokens)]) if lengths is None else np.asarray(lengths, np.int64)
        if counts.sum() != len(tokens) or (len(counts) and counts.min() < 0):
            raise LoaderError(f"the documents' lengths sum to {counts.sum()}, but there are {len(tokens)} tokens")
        if loss_mask is not None and len(loss_mask) != len(tokens):
            raise LoaderError(f"a loss mask of {len(loss_mask)} entries for {len(tokens)} tokens")
        self._mask = None if loss_mask is None else np.asarray(loss_mask, bool)
        self._borders = np.concatenate([[0], np.cumsum(counts[counts > 0])]).astype(np.int64)
        digest = xxhash.xxh3_128(self._array.dtype.str.encode())
        for part in (self._array, self._borders) if self._mask is None else (self._array, self._borders, self._mask):
            digest.update(np.ascontiguousarray(part).data)
        self.identity = digest.hexdigest()

    @property
    def tokens(self) -> int:
        return len(self._array)

    @property
    def dtype(self) -> np.dtype:
        return self._array.dtype

    @property
    def has_loss_mask(self) -> bool:
        return self._mask is not None

    def read(self, start: int, stop: int) -> np.ndarray:
        return self._array[start:stop]

    def read_loss_mask(self, start: int, stop: int) -> np.ndarray:
        if self._mask is None:
            raise LoaderError("this source has no loss mask")
        return self._mask[start:stop]

    def document_borders(self, start: int, stop: int) -> np.ndarray:
        return borders_touching(self._borders, start, stop)


def borders_touching(borders: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Of all borders of a source (from 0 to its end), those of the documents that touch start..stop-1."""
    first = int(np.searchsorted(borders, start, side="right")) - 1
    last = int(np.searchsorted(borders, stop, side="left"))
    return borders[first : last + 1]


class RangeSource:
    """Some ranges of another source, end to end; they begin and end at document borders."""

    def __init__(self, base: TokenSource, ranges: Sequence[tuple[int, int]]) -> None:
        self._base = base
        self._starts = np.array([start for start, _ in ranges], np.int64)
        sizes = np.array([stop - start for start, stop in ranges], np.int64)
        self._view = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.identity = xxhash.xxh3_128_hexdigest(
            base.identity.encode() + self._starts.tobytes() + self._view.tobytes()
        )

    @property
    def tokens(self) -> int:
        return int(self._view[-1])

    @property
    def dtype(self) -> np.dtype:
        return self._base.dtype

    @property
    def has_loss_mask(self) -> bool:
        return self._base.has_loss_mask

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """(start, stop, shift) on the base for a range of this axis; a base position minus the shift is ours."""
        first = int(np.searchsorted(self._view, start, side="right")) - 1
        last = int(np.searchsorted(self._view, stop, side="left"))
        pieces = []
        for i in range(first, last):
            shift = int(self._starts[i] - self._view[i])
            pieces.append((max(start, int(self._view[i])) + shift, min(stop, int(self._view[i + 1])) + shift, shift))
        return pieces

    def read(self, start: int, stop: int) -> np.ndarray:
        return _joined([self._base.read(a, b) for a, b, _ in self.pieces(start, stop)], self.dtype)

    def read_loss_mask(self, start: int, stop: int) -> np.ndarray:
        return _joined([self._base.read_loss_mask(a, b) for a, b, _ in self.pieces(start, stop)], np.dtype(bool))

    def document_borders(self, start: int, stop: int) -> np.ndarray:
        parts = [self._base.document_borders(a, b) - shift for a, b, shift in self.pieces(start, stop)]
        return np.unique(_joined(parts, np.dtype(np.int64)))


def _joined(parts: list[np.ndarray], dtype: np.dtype) -> np.ndarray:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([np.zeros(0, dtype), *parts])
