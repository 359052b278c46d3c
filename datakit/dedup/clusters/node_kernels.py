"""Implements the compiled loops of `node_tables.py`: hash tables with open addressing, whose keys are nodes (row
numbers, uint64). The number of slots is a power of two. The low bits of the mixed row number choose the slot, because
the high bits choose the bucket of an exchange.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit

from datakit.text import hash_mixing
from datakit.text.numba_cache import Decorator, cached_njit

EMPTY = np.uint64(2**64 - 1)  # the key of an empty slot; never a row number
_ONE = np.uint64(1)

kernel: Decorator = cached_njit(hash_mixing)
mix: Callable[[np.uint64], np.uint64] = njit(cache=True, nogil=True, inline="always")(hash_mixing.mix)


@kernel
def _slot(keys: np.ndarray, node: np.uint64) -> np.int64:
    """Return the slot that holds the node or, if none does, the empty slot into which it belongs."""
    last = np.uint64(len(keys) - 1)
    slot = mix(node) & last
    while keys[slot] != EMPTY and keys[slot] != node:
        slot = (slot + _ONE) & last
    return np.int64(slot)


@kernel
def fold(keys: np.ndarray, smallest: np.ndarray, marked: np.ndarray, nodes: np.ndarray, others: np.ndarray) -> int:
    """Add the neighbors others[i] of nodes[i], and return the number of new nodes. A node that is paired with itself is
    marked.
    """
    added = 0
    for i in range(len(nodes)):
        slot = _slot(keys, nodes[i])
        if keys[slot] == EMPTY:
            keys[slot] = nodes[i]
            smallest[slot] = nodes[i]
            marked[slot] = False
            added += 1
        if others[i] == nodes[i]:
            marked[slot] = True
        elif others[i] < smallest[slot]:
            smallest[slot] = others[i]
    return added


@kernel
def look_up(keys: np.ndarray, values: np.ndarray, nodes: np.ndarray, found: np.ndarray) -> None:
    """Store the value of nodes[i] in found[i]; the value of a node that is not in the table is the node itself."""
    for i in range(len(nodes)):
        slot = _slot(keys, nodes[i])
        found[i] = nodes[i] if keys[slot] == EMPTY else values[slot]


@kernel
def copy(
    keys: np.ndarray,
    smallest: np.ndarray,
    marked: np.ndarray,
    new_keys: np.ndarray,
    new_smallest: np.ndarray,
    new_marked: np.ndarray,
) -> None:
    """Copy all nodes to a table with more slots."""
    for slot in range(len(keys)):
        if keys[slot] != EMPTY:
            there = _slot(new_keys, keys[slot])
            new_keys[there] = keys[slot]
            new_smallest[there] = smallest[slot]
            new_marked[there] = marked[slot]


@kernel
def _find(parents: np.ndarray, slot: int) -> int:
    while parents[slot] != slot:
        parents[slot] = parents[parents[slot]]
        slot = parents[slot]
    return slot


@kernel
def join(keys: np.ndarray, parents: np.ndarray, left: np.ndarray, right: np.ndarray) -> int:
    """Join the components of left[i] and right[i] for all i, and return the number of new nodes. The root of a
    component is its smallest node.
    """
    added = 0
    for i in range(len(left)):
        one = _slot(keys, left[i])
        if keys[one] == EMPTY:
            keys[one], parents[one] = left[i], one
            added += 1
        other = _slot(keys, right[i])
        if keys[other] == EMPTY:
            keys[other], parents[other] = right[i], other
            added += 1
        one, other = _find(parents, one), _find(parents, other)
        if keys[one] < keys[other]:
            parents[other] = one
        else:
            parents[one] = other
    return added


@kernel
def roots(keys: np.ndarray, parents: np.ndarray, first: int, found: np.ndarray) -> None:
    """Store the root of the node in slot first + i in found[i]."""
    for i in range(len(found)):
        if keys[first + i] != EMPTY:
            found[i] = keys[_find(parents, first + i)]
