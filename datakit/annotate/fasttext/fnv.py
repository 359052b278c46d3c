"""Implements fastText's hash: 32-bit FNV-1a over bytes as *signed* numbers (`Dictionary::hash` in fastText 0.9.2).

A byte above 127 therefore changes all bits of the state. Other implementations of FNV-1a give other hashes for such
bytes.
"""

from __future__ import annotations

import numpy as np

from datakit.text.numba_cache import Decorator, cached_njit

BASIS = np.uint64(2166136261)
_PRIME, _BITS = np.uint64(16777619), np.uint64(0xFFFFFFFF)
_SIGN, _HIGH = np.uint64(128), np.uint64(0xFFFFFF00)
kernel: Decorator = cached_njit()


@kernel
def extended(byte: np.uint8) -> np.uint64:
    """Return the lower 32 bits of a byte as a signed number."""
    wide = np.uint64(byte)
    return wide | _HIGH if wide & _SIGN else wide


@kernel
def fnv_step(code: np.uint64, wide: np.uint64) -> np.uint64:
    """Return the hash of a string and one more byte; `wide` is the byte, extended."""
    return ((code ^ wide) * _PRIME) & _BITS
