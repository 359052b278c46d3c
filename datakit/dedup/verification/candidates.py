"""Finds, in numba kernels, the candidates of a document: the retained documents that are listed for one of its band
keys. For each key, the index lists only the first `listed` retained documents that have the key, and counts the others.

The candidates of a document are packed into integers that sort in the order of comparison: those that share more bands
first, and then by id. Cost: up to `bands * listed` look-ups per document.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

import numpy as np

from datakit.dedup.verification import arrays
from datakit.dedup.verification.arrays import NONE, Component, Documents, Earlier, Index, Proposals
from datakit.text.numba_cache import Decorator, cached_njit

RANK_BITS = 48  # the low bits of a packed candidate hold its rank, and the high bits the number of bands not shared
RANK = np.int64((1 << RANK_BITS) - 1)
_ONE = np.uint64(1)
kernel: Decorator = cached_njit(arrays)


@kernel
def component_of(number: int, documents: Documents) -> Component:
    """Return the component with this index in `starts`, with a hash table that is at most half full."""
    start, stop = documents.starts[number], documents.starts[number + 1]
    slots = 2
    while slots < 2 * (stop - start) * documents.keys.shape[1]:
        slots *= 2
    return Component(start, number, np.uint64(slots - 1))


@kernel
def slot_of(index: Index, component: Component, key: np.uint64) -> np.int64:
    """Return the slot that holds `key`, or the empty slot where it belongs (by linear probing)."""
    slot = key & component.mask
    while index.stamp[slot] == component.number and index.keys[slot] != key:
        slot = (slot + _ONE) & component.mask
    return np.int64(slot)


@kernel
def propose(
    document: int,
    mark: int,
    component: Component,
    documents: Documents,
    index: Index,
    proposals: Proposals,
    listed: int,
    earlier: Earlier,
) -> tuple[int, bool]:
    """Put the retained documents that share a band key with `document` into `proposals.best`, the best one first. mark:
    a number that no other call for the same component uses.

    Returns the number of these candidates, and True if, for any of the document's keys, more retained documents share
    the key than are listed for it.
    """
    seen, shared, best = proposals
    start, bands, count, crowded = component.start, documents.keys.shape[1], 0, False
    for band in range(bands):
        slot = slot_of(index, component, documents.keys[document, band])
        if index.stamp[slot] != component.number:
            if len(earlier.retained):
                crowded |= earlier.retained[document, band] > listed
            continue
        crowded |= index.size[slot] > listed
        entry = index.head[slot]
        while entry != NONE:
            other = entry // bands - start
            if seen[other] != mark:
                seen[other], shared[other] = mark, 0
                best[count] = other
                count += 1
            shared[other] += 1
            entry = index.link[entry - start * bands]
    for i in range(count):
        other = best[i]
        best[i] = (np.int64(bands - shared[other]) << RANK_BITS) | documents.rank[start + other]
    best[:count].sort()
    return count, bool(crowded)


@kernel
def retain(document: int, component: Component, keys: np.ndarray, index: Index, listed: int, earlier: Earlier) -> None:
    """Add a retained document to the list of each of its band keys, unless that list is full."""
    bands = keys.shape[1]
    for band in range(bands):
        slot = slot_of(index, component, keys[document, band])
        if index.stamp[slot] != component.number:
            index.keys[slot], index.stamp[slot] = keys[document, band], component.number
            index.head[slot], index.size[slot] = NONE, 0
            if len(earlier.retained):
                index.size[slot] = earlier.retained[document, band]
        index.size[slot] += 1
        if index.size[slot] <= listed:
            entry = document * bands + band
            index.link[entry - component.start * bands] = index.head[slot]
            index.head[slot] = entry
