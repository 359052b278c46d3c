"""Decides, in numba kernels, which documents of a component are duplicates: compares each document, shingle by shingle,
with candidates among the documents retained so far.

Locality-sensitive hashing only proposes pairs. Documents are processed in the order given by `survivors.py`. Each
document is compared, by the exact measure, with up to `most` retained documents that share a band key with it:
candidates that share more bands come first, and ties are broken by id. The first candidate at or above the threshold
makes the document a duplicate *of that candidate*, which is never removed later. If there is no such candidate, the
document is retained. So no document is removed without a direct comparison with a document that is kept.

The work per document is bounded, however large its component is. For each band key, the index lists only the first
`listed` retained documents that have the key. A key shared by more documents usually comes from boilerplate, and near
duplicates also share rarer keys. Each document needs at most `bands * listed` look-ups and `most` intersections;
documents that are retained after one of these limits was reached are counted. All arrays may be memory-mapped.

Cost: an intersection reads both sorted sets once, without branching on their values, at about a nanosecond per shingle.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.dedup.verification import rules
from datakit.dedup.verification.rules import Rules
from datakit.text.numba_cache import Decorator, cached_njit

NONE = -1
CANDIDATES, RULED_OUT, COMPARISONS, REJECTED, CAPPED, CROWDED = range(6)  # indices in COUNTED
_STRIDE = 64  # number of steps between two checks of whether an intersection can still reach the threshold
_RANK_BITS = 48
_RANK = np.int64((1 << _RANK_BITS) - 1)
_ONE = np.uint64(1)
kernel: Decorator = cached_njit(rules)


class Documents(NamedTuple):
    """N documents, grouped by component and in survivor order within each component.

    Other arrays refer to a document by its position in this order. starts: int64 [components + 1], the position of the
    first document of each component, then N. offsets: int64 [N + 1], the index in `shingles` at which each document's
    shingles start, then the length of `shingles`. shingles: uint64, sorted and without repeats in each document. keys:
    uint64 [N, bands], the band keys. rank: int64 [N], the position of each document in the order of ids. by_rank: the
    inverse permutation of `rank`.
    """

    starts: np.ndarray
    offsets: np.ndarray
    shingles: np.ndarray
    keys: np.ndarray
    rank: np.ndarray
    by_rank: np.ndarray


class Component(NamedTuple):
    """The component being verified. start: the position of its first document. number: its index in `starts`.
    mask: the size of its hash table, minus one.
    """

    start: int
    number: int
    mask: np.uint64


class Index(NamedTuple):
    """A component's retained documents, grouped by band key: a hash table of linked lists, reused for each component.

    A slot is empty unless its `stamp` is the component's number. head: the newest entry of the slot's list, or NONE; an
    entry is document * bands + band. link: for each entry, the next entry in its list, or NONE. size: how many retained
    documents share the slot's key, including those not listed.
    """

    keys: np.ndarray
    stamp: np.ndarray
    head: np.ndarray
    size: np.ndarray
    link: np.ndarray


class Proposals(NamedTuple):
    """Scratch space for the candidates of a document. seen: for each earlier document of the component, the last
    document found to share a band with it. shared: the number of bands that these two documents share. Both arrays are
    int64 [size of the largest component]. best: the candidates, packed into int64 for sorting.
    """

    seen: np.ndarray
    shared: np.ndarray
    best: np.ndarray


@kernel
def common(shingles: np.ndarray, a: int, a_stop: int, b: int, b_stop: int, least: float) -> int:
    """Return how many values the sorted ranges [a, a_stop) and [b, b_stop) have in common. If there are fewer
    than `least`, counting may stop early, and the result may be too small.
    """
    shared = 0
    while a < a_stop and b < b_stop:
        if shared + min(a_stop - a, b_stop - b) < least:
            return shared
        for _ in range(_STRIDE):
            left, right = shingles[a], shingles[b]
            shared += left == right
            a += left <= right
            b += right <= left
            if a >= a_stop or b >= b_stop:
                break
    return shared


@kernel
def _slot(index: Index, component: Component, key: np.uint64) -> np.int64:
    """Return the slot that holds `key`, or the empty slot where it belongs (by linear probing)."""
    slot = key & component.mask
    while index.stamp[slot] == component.number and index.keys[slot] != key:
        slot = (slot + _ONE) & component.mask
    return np.int64(slot)


@kernel
def _propose(
    document: int, component: Component, documents: Documents, index: Index, proposals: Proposals, listed: int
) -> tuple[int, bool]:
    """Put the retained documents that share a band key with `document` into `proposals.best`, the best one first.

    Returns the number of these candidates, and True if, for any of the document's keys, more retained documents share
    the key than the index lists for it.
    """
    seen, shared, best = proposals
    start, bands, count, crowded = component.start, documents.keys.shape[1], 0, False
    for band in range(bands):
        slot = _slot(index, component, documents.keys[document, band])
        if index.stamp[slot] != component.number:
            continue
        crowded |= index.size[slot] > listed
        entry = index.head[slot]
        while entry != NONE:
            other = entry // bands - start
            if seen[other] != document:
                seen[other], shared[other] = document, 0
                best[count] = other
                count += 1
            shared[other] += 1
            entry = index.link[entry - start * bands]
    for i in range(count):
        other = best[i]
        best[i] = (np.int64(bands - shared[other]) << _RANK_BITS) | documents.rank[start + other]
    best[:count].sort()
    return count, bool(crowded)


@kernel
def _retain(document: int, component: Component, keys: np.ndarray, index: Index, listed: int) -> None:
    """Add a retained document to the list of each of its band keys, unless that list is full."""
    bands = keys.shape[1]
    for band in range(bands):
        slot = _slot(index, component, keys[document, band])
        if index.stamp[slot] != component.number:
            index.keys[slot], index.stamp[slot] = keys[document, band], component.number
            index.head[slot], index.size[slot] = NONE, 0
        index.size[slot] += 1
        if index.size[slot] <= listed:
            entry = document * bands + band
            index.link[entry - component.start * bands] = index.head[slot]
            index.head[slot] = entry


@kernel
def _judge(
    document: int, count: int, best: np.ndarray, documents: Documents, rules: Rules, counts: np.ndarray
) -> tuple[int, float]:
    """Return the first of `count` candidates that reaches the threshold, and its Jaccard similarity; else (NONE, 0)."""
    offsets, threshold, by_jaccard = documents.offsets, rules.threshold, rules.measure == 0
    begin, end = int(offsets[document]), int(offsets[document + 1])
    size, compared = end - begin, 0
    for i in range(count):
        other = int(documents.by_rank[best[i] & _RANK])
        other_begin, other_end = int(offsets[other]), int(offsets[other + 1])
        other_size = other_end - other_begin
        possible = min(size, other_size) / (max(size, other_size) if by_jaccard else size)
        if possible < threshold:
            counts[RULED_OUT] += 1
            continue
        if compared == rules.most:
            counts[CAPPED] += 1
            break
        compared += 1
        counts[COMPARISONS] += 1
        least = threshold / (1 + threshold) * (size + other_size) if by_jaccard else threshold * size
        both = common(documents.shingles, begin, end, other_begin, other_end, least - 1.0)
        jaccard = both / (size + other_size - both)
        if (jaccard if by_jaccard else both / size) >= threshold:
            return other, jaccard
        counts[REJECTED] += 1
    return NONE, 0.0


@kernel
def _component(number: int, documents: Documents) -> Component:
    start, stop = documents.starts[number], documents.starts[number + 1]
    slots = 2
    while slots < 2 * (stop - start) * documents.keys.shape[1]:
        slots *= 2
    return Component(start, number, np.uint64(slots - 1))


@kernel
def verify_documents(
    first: int,
    last: int,
    number: int,
    documents: Documents,
    rules: Rules,
    listed: int,
    index: Index,
    proposals: Proposals,
    representative: np.ndarray,
    jaccard: np.ndarray,
    counts: np.ndarray,
) -> int:
    """Judge the documents [first, last). `number` is the component of document `first`, or the component before it if
    the document begins a new one. All earlier documents must have been judged with the same index. Return the component
    of the last document.
    """
    component = _component(number, documents)
    for document in range(first, last):
        if document == documents.starts[component.number + 1]:
            component = _component(component.number + 1, documents)
        count, crowded = _propose(document, component, documents, index, proposals, listed)
        counts[CANDIDATES] += count
        other, similarity = _judge(document, count, proposals.best, documents, rules, counts)
        representative[document], jaccard[document] = other, similarity
        if other == NONE:
            counts[CROWDED] += crowded
            _retain(document, component, documents.keys, index, listed)
    return component.number


@kernel
def copy_lists(
    values: np.ndarray, offsets: np.ndarray, target: np.ndarray, target_offsets: np.ndarray, places: np.ndarray
) -> None:
    """Copy each list i in `values` to `target`, where it becomes list places[i]."""
    for i in range(len(places)):
        begin = target_offsets[places[i]]
        for j in range(offsets[i + 1] - offsets[i]):
            target[begin + j] = values[offsets[i] + j]
