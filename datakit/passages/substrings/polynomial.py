"""Implements polynomial hashes modulo the prime 2**61 - 1, for numba kernels. The hash of any substring follows from
those of two prefixes, or from the hash of the substring one byte to the left.

A hash consists of two such values with different bases, so it has 122 bits. Both bases are fixed. For 10^12 different
texts of 300 bytes, the probability that any two have equal hashes is about 10^-8 (the square of 300 / 2**61, for each
pair). An attacker can construct two texts with equal hashes.

Cost: about 2 ns per byte, because the next value of a prefix waits for one multiplication and three other operations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

PRIME = np.uint64((1 << 61) - 1)
BASES = (0x0F3C_96A1_57D2_4E8B, 0x0A64_0D7B_C95F_3127)  # random numbers below 2**60, so that sums stay below 2**63
_BITS, _SHIFT = np.uint64(61), np.uint64(3)


@intrinsic
def _high_product(context: Any, first: Any, second: Any) -> Any:
    """Return the upper 64 bits of the product of two uint64 numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


_HIGH_PRODUCT: Any = _high_product  # numba passes the context


@njit(cache=True, nogil=True, inline="always")
def times(value: np.uint64, shifted: np.uint64) -> np.uint64:
    """Return a number that equals value * factor modulo the prime. shifted: the factor, shifted left by 3 bits. For a
    value below 2**63, the result is below `value * factor / 2**61 + 2**61`.
    """
    return _HIGH_PRODUCT(value, shifted) + (value * shifted >> _SHIFT)  # 2**61 is 1 modulo the prime


@njit(cache=True, nogil=True, inline="always")
def reduced(value: np.uint64) -> np.uint64:
    """Return the remainder of any number modulo the prime."""
    value = (value & PRIME) + (value >> _BITS)
    return value - PRIME if value >= PRIME else value


@njit(cache=True, nogil=True, inline="always")
def difference(value: np.uint64, other: np.uint64) -> np.uint64:
    """Return the remainder of value - other modulo the prime. Both are below 2**63."""
    return reduced(value + (PRIME << np.uint64(2)) - other)


def powers(base: int, count: int) -> np.ndarray:
    """Return the powers of a base with exponents from 0 to `count - 1` modulo the prime, shifted left by 3 bits as
    `times` needs them: uint64 [count].
    """
    found, power = np.empty(count, np.uint64), 1
    for exponent in range(count):
        found[exponent] = power << int(_SHIFT)
        power = power * base % int(PRIME)
    found.flags.writeable = False
    return found
