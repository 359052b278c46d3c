"""Defines TokenSource (tokens, document boundaries, loss mask, content hash), ArraySource, RangeSource and BlockAxis.

`TokenSource` lists all that the loader needs from a source. `CacheSource` (cache_source.py), `ArraySource` (an array in
memory) and `RangeSource` (ranges of another source) implement it. Sources do not depend on sequence lengths, because
the loader cuts the sequences. `BlockAxis` divides an axis of tokens into blocks, the unit of reading and shuffling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import xxhash

from datakit.errors import LoaderError

BLOCK_TOKENS = 1 << 20  # tokens in a block by default: 2 MB (uint16) or 4 MB (uint32) per read; 256 sequences of 4,096


@runtime_checkable
class TokenSource(Protocol):
    """A sequence of tokens, divided into documents. The methods must be thread-safe.

    dtype: uint16, or uint32 with ids below 2^31. identity: hash of the content; equal identities mean equal tokens in
    the same order. has_loss_mask: True if the source states for each token whether a model should learn it.
    """

    @property
    def tokens(self) -> int: ...

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def identity(self) -> str: ...

    @property
    def has_loss_mask(self) -> bool: ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return tokens start..stop-1. The array remains valid after later reads; the caller must not change it."""
        ...

    def read_loss_mask(self, start: int, stop: int) -> np.ndarray:
        """Return the loss mask of tokens start..stop-1: bool. Call this only if `has_loss_mask` is True."""
        ...

    def document_borders(self, start: int, stop: int) -> np.ndarray:
        """Return the starts of the documents that overlap start..stop-1, then the end of the last of them: int64. The
        boundaries ascend. The first is at or before `start`, the last at or after `stop`. Empty documents are left out.
        """
        ...


class ArraySource:
    """Tokens in memory, with the lengths of their documents (by default, a single document) and an optional loss mask.
    `loss_mask` is bool [tokens]. Raises LoaderError if the lengths or the mask do not match the tokens.
    """

    def __init__(
        self, tokens: np.ndarray, lengths: Sequence[int] | np.ndarray | None = None, loss_mask: np.ndarray | None = None
    ) -> None:
        self._array = tokens.view() if tokens.dtype in (np.uint16, np.uint32) else tokens.astype(np.uint32)
        self._array.flags.writeable = False
        counts = np.array([len(tokens)]) if lengths is None else np.asarray(lengths, np.int64)
        if counts.sum() != len(tokens) or (len(counts) and counts.min() < 0):
            raise LoaderError(
                "no document length may be negative, and the lengths must sum to the number of tokens, "
                f"{len(tokens)}; their sum is {counts.sum()}"
            )
        if loss_mask is not None and len(loss_mask) != len(tokens):
            raise LoaderError(f"the loss mask has {len(loss_mask)} entries, but there are {len(tokens)} tokens")
        self._mask = None if loss_mask is None else np.asarray(loss_mask, bool)
        self._borders = np.concatenate([[0], np.cumsum(counts[counts > 0])]).astype(np.int64)
        digest = xxhash.xxh3_128(self._array.dtype.str.encode())
        for part in (self._array, self._borders) if self._mask is None else (self._array, self._borders, self._mask):
            digest.update(np.ascontiguousarray(part).data)
        self.identity: str = digest.hexdigest()

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
    """Return the boundaries of the documents that overlap start..stop-1. `borders` holds all boundaries of a source."""
    first = int(np.searchsorted(borders, start, side="right")) - 1
    last = int(np.searchsorted(borders, stop, side="left"))
    return borders[first : last + 1]


class RangeSource:
    """Ranges (start, stop) of another source, laid end to end. Each range must start and end at a document boundary."""

    def __init__(self, base: TokenSource, ranges: Sequence[tuple[int, int]]) -> None:
        self.base: TokenSource = base
        self._starts = np.array([start for start, _ in ranges], np.int64)
        sizes = np.array([stop - start for start, stop in ranges], np.int64)
        self._view = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        content = base.identity.encode() + self._starts.tobytes() + self._view.tobytes()
        self.identity: str = xxhash.xxh3_128_hexdigest(content)

    @property
    def tokens(self) -> int:
        return int(self._view[-1])

    @property
    def dtype(self) -> np.dtype:
        return self.base.dtype

    @property
    def has_loss_mask(self) -> bool:
        return self.base.has_loss_mask

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return (start, stop, shift) for each part of a range. A part consists of tokens start..stop-1 of the base
        source; `shift` is a token's position there minus its position in this source.
        """
        first = int(np.searchsorted(self._view, start, side="right")) - 1
        last = int(np.searchsorted(self._view, stop, side="left"))
        pieces = []
        for i in range(first, last):
            shift = int(self._starts[i] - self._view[i])
            pieces.append((max(start, int(self._view[i])) + shift, min(stop, int(self._view[i + 1])) + shift, shift))
        return pieces

    def position_of(self, position: int) -> int | None:
        """Return where a token of the base source is in this source; None if it is in none of the ranges."""
        i = int(np.searchsorted(self._starts, position, side="right")) - 1
        at = position - int(self._starts[i]) + int(self._view[i]) if i >= 0 else -1
        return at if i >= 0 and at < self._view[i + 1] else None

    def read(self, start: int, stop: int) -> np.ndarray:
        return _joined([self.base.read(a, b) for a, b, _ in self.pieces(start, stop)], self.dtype)

    def read_loss_mask(self, start: int, stop: int) -> np.ndarray:
        return _joined([self.base.read_loss_mask(a, b) for a, b, _ in self.pieces(start, stop)], np.dtype(bool))

    def document_borders(self, start: int, stop: int) -> np.ndarray:
        parts = [self.base.document_borders(a, b) - shift for a, b, shift in self.pieces(start, stop)]
        return np.unique(_joined(parts, np.dtype(np.int64)))


def _joined(parts: list[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])


@dataclass(frozen=True)
class BlockAxis:
    """Blocks 0..count-1 of an axis of `tokens` tokens. A remainder of less than half a block joins the block before it.
    Blocks do not depend on the sequence length: even if it changes from 4,096 to 131,072, the blocks stay the same.
    """

    tokens: int
    block_tokens: int

    @property
    def count(self) -> int:
        return max(1, (self.tokens + self.block_tokens // 2) // self.block_tokens)

    def range(self, block: int) -> tuple[int, int]:
        """Return (start, stop) of a block, which consists of tokens start..stop-1."""
        start = block * self.block_tokens
        return start, self.tokens if block == self.count - 1 else start + self.block_tokens
