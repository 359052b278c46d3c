"""Implements MurmurHash3 (x64, 128 bits) for numba kernels, which cannot call xxh3-128, the hash of documents' ids.
Neither of the two resists an attacker who constructs collisions.

Cost: about 0.4 ns per byte.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from datakit.text import hash_mixing
from datakit.text.numba_cache import Decorator, cached_njit

BLOCK = 16  # bytes that are hashed at a time
_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_FIVE, _N1, _N2 = np.uint64(5), np.uint64(0x52DCE729), np.uint64(0x38495AB5)
_F1, _F2, _HALF = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53), np.uint64(33)

kernel: Decorator = cached_njit(hash_mixing)


@njit(cache=True, nogil=True, inline="always")
def _rotated(value: np.uint64, bits: int) -> np.uint64:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@njit(cache=True, nogil=True, inline="always")
def _final(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> _HALF)) * _F1
    value = (value ^ (value >> _HALF)) * _F2
    return value ^ (value >> _HALF)


@kernel
def hash_128(words: np.ndarray, length: int, seed: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return the hash of the first `length` bytes of `words`, uint64. The bytes after them, up to the end of their
    block of 16 bytes, must be zero.
    """
    high = low = seed
    whole = length // BLOCK
    for block in range(whole):
        first, second = words[2 * block], words[2 * block + 1]
        high ^= _rotated(first * _C1, 31) * _C2
        high = (_rotated(high, 27) + low) * _FIVE + _N1
        low ^= _rotated(second * _C2, 33) * _C1
        low = (_rotated(low, 31) + high) * _FIVE + _N2
    if length % BLOCK:  # a word of zeros changes nothing
        low ^= _rotated(words[2 * whole + 1] * _C2, 33) * _C1
        high ^= _rotated(words[2 * whole] * _C1, 31) * _C2
    high ^= np.uint64(length)
    low ^= np.uint64(length)
    high += low
    low += high
    high, low = _final(high), _final(low)
    high += low
    low += high
    return high, low
