"""Chooses which parts of a long document a model reads: evenly spaced pieces, so that the time per document is bounded.

A document of at most `max_bytes` bytes is read whole. A longer one is read as PIECES pieces of `max_bytes / PIECES`
bytes each, rounded down: piece i starts at byte i * (size - piece) // (PIECES - 1), so the first piece is the beginning
of the document and the last is its end. Both ends of a piece then move forward to the next boundary of a character.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

import numpy as np

from datakit.annotate.fasttext.checks import PIECES
from datakit.text.numba_cache import Decorator, cached_njit

kernel: Decorator = cached_njit()


@kernel
def _boundary(data: np.ndarray, position: int, stop: int) -> int:
    """Return the first position from `position` on where a character begins, or `stop`."""
    while position < stop and data[position] & 0xC0 == 0x80:
        position += 1
    return position


@kernel
def pieces_of(data: np.ndarray, start: int, stop: int, max_bytes: int, starts: np.ndarray, stops: np.ndarray) -> int:
    """Write where the pieces of the document `data[start:stop]` start and stop, int64 [PIECES]; return their number."""
    if stop - start <= max_bytes:
        starts[0], stops[0] = start, stop
        return 1
    size = max_bytes // PIECES
    for i in range(PIECES):
        begin = start + i * (stop - start - size) // (PIECES - 1)
        starts[i], stops[i] = _boundary(data, begin, stop), _boundary(data, begin + size, stop)
    return PIECES
