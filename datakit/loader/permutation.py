"""Computes keyed permutations of up to 2^62 - 1 elements and their inverses, and hashes names and numbers to keys.

The permutation of n elements is a Feistel network over the smallest power of two that is at least n. It splits an
element's bits into two parts whose lengths differ by at most one bit, and has six rounds of a full 64-bit mixing
function with 64-bit keys. Results outside 0..n-1 are fed to the network again until they fall in this range (cycle
walking); on average, this takes fewer than two passes. For up to 4,096 elements, the argsort of keyed hashes, kept as a
table, is cheaper and is used instead. For small n, this method produces all n! orders with practically equal
probability, whereas a Feistel network on two or three bits can produce only some of them.

A call takes 50-100 us, plus 0.1-0.2 us per element, so callers ask for a whole window at a time. All arithmetic uses
integers, so the results are the same on every machine and with every version of numpy.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Protocol

import numpy as np
import xxhash

from datakit.text.hash_mixing import GOLDEN, mix

TABLE_SIZE = 4096
ROUNDS = 6  # `_backward` requires an even number
MASK64 = (1 << 64) - 1


class Order(Protocol):
    """A permutation of 0..size-1 and its inverse."""

    size: int

    def __call__(self, positions: np.ndarray) -> np.ndarray: ...

    def inverse(self, indices: np.ndarray) -> np.ndarray: ...


def derive_key(*parts: str | int) -> int:
    """Hash a list of names and numbers to a 64-bit key, as in `derive_key(seed, "web", "epoch", 3)`."""
    return xxhash.xxh3_64_intdigest(json.dumps(parts, separators=(",", ":")).encode())


def keyed_hashes(key: int, count: int) -> np.ndarray:
    """Return the first `count` outputs of SplitMix64 seeded with `key`: uint64 [count]."""
    return mix(np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)


class InOrder:
    """The identity permutation, for components that are not shuffled."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        return np.asarray(positions, np.int64)

    def inverse(self, indices: np.ndarray) -> np.ndarray:
        return np.asarray(indices, np.int64)


class Permutation:
    """A keyed permutation of 0..size-1. Call it to map positions to indices, and call `inverse` to map indices back.
    Both methods take and return int64 arrays. Raises ValueError if `size` is not in 1..2^62-1.
    """

    def __init__(self, size: int, key: int) -> None:
        if not 0 < size < 1 << 62:
            raise ValueError(f"a permutation has 1 to 2^62 - 1 elements, not {size}")
        self.size = size
        self.key: int = key & MASK64
        bits = max(1, (size - 1).bit_length())
        self.high_bits: int = bits - bits // 2
        self.low_bits: int = bits // 2

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        positions = np.asarray(positions, np.int64)
        if self.size <= TABLE_SIZE:
            return self._table[positions]
        return self._walk(positions, self._forward)

    def inverse(self, indices: np.ndarray) -> np.ndarray:
        indices = np.asarray(indices, np.int64)
        if self.size <= TABLE_SIZE:
            return self._inverse_table[indices]
        return self._walk(indices, self._backward)

    @cached_property
    def _table(self) -> np.ndarray:
        return np.argsort(keyed_hashes(self.key, self.size), kind="stable").astype(np.int64)

    @cached_property
    def _inverse_table(self) -> np.ndarray:
        return np.argsort(self._table, kind="stable").astype(np.int64)

    @cached_property
    def _round_keys(self) -> np.ndarray:
        return keyed_hashes(self.key, ROUNDS)

    def _walk(self, values: np.ndarray, network) -> np.ndarray:
        """Apply the network, and reapply it to results outside 0..size-1 until all are inside. The loop ends, because
        the cycle of the network's permutation that starts at a value inside the range returns to that value.
        """
        result = network(values.astype(np.uint64))
        outside = np.flatnonzero(result >= np.uint64(self.size))
        while outside.size:
            again = network(result[outside])
            result[outside] = again
            outside = outside[again >= np.uint64(self.size)]
        return result.astype(np.int64)

    def _forward(self, values: np.ndarray) -> np.ndarray:
        high_bits, low_bits = self.high_bits, self.low_bits
        high, low = values >> np.uint64(low_bits), values & np.uint64((1 << low_bits) - 1)
        for key in self._round_keys:
            high, low = low, high ^ _take_bits(mix(low ^ key), high_bits)
            high_bits, low_bits = low_bits, high_bits
        return (high << np.uint64(low_bits)) | low

    def _backward(self, values: np.ndarray) -> np.ndarray:
        high_bits, low_bits = self.high_bits, self.low_bits
        high, low = values >> np.uint64(low_bits), values & np.uint64((1 << low_bits) - 1)
        for key in self._round_keys[::-1]:
            high, low = low ^ _take_bits(mix(high ^ key), low_bits), high
            high_bits, low_bits = low_bits, high_bits
        return (high << np.uint64(low_bits)) | low


def _take_bits(hashes: np.ndarray, bits: int) -> np.ndarray:
    return hashes >> np.uint64(64 - bits)
