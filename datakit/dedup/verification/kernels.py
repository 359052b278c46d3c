"""Verification: each document of a component against documents that stay, shingle by shingle.

Locality-sensitive hashing only proposes. Documents are taken in survivor order; each is compared, by the exact
measure, with at most `most` retained documents that share a band key with it, those with most shared bands first, then
by id. The first one at or above the threshold makes it a duplicate *of that document*, which stays for good; without
one it is retained. So nothing goes without a direct check against something that remains.

Work is bounded in components of any size: a band key lists the first `listed` retained documents only (a key that more
of them share is boilerplate and tells nothing; near duplicates share rarer keys too), so a document costs at most
bands x listed look-ups and `most` intersections. What was left out is counted. All arrays may be memory-mapped.

Cost: an intersection reads both sorted sets once, without branches: about a nanosecond a shingle.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit

from datakit.dedup.verification.options import COUNTED, Rules
from datakit.storage.os_errors import scratch_errors

NONE = -1
CANDIDATES, RULED_OUT, COMPARISONS, REJECTED, CAPPED, CROWDED = range(6)  # the places of COUNTED in the kernel
_STRIDE = 64  # steps of an intersection between looks at whether it can still reach the threshold
_RANK_BITS = 48
_RANK = np.int64((1 << _RANK_BITS) - 1)
_ONE = np.uint64(1)


@dataclass(frozen=True)
class Documents:
    """N documents by component, inside it in survivor order; positions in these arrays name them.

    starts: int64 [components + 1]. offsets: int64 [N + 1] into shingles, uint64, sorted and unique for each document.
    keys: uint64 [N, bands]. rank: int64 [N], the position of each document in the order of ids; by_rank its inverse.
    """

    starts: np.ndarray
    offsets: np.ndarray
    shingles: np.ndarray
    keys: np.ndarray
    rank: np.ndarray
    by_rank: np.ndarray


@njit(cache=True, nogil=True)
def common(shingles: np.ndarray, a: int, a_stop: int, b: int, b_stop: int, least: float) -> int:
    """How many values the sorted ranges [a, a_stop) and [b, b_stop) share; less than that, once below `least`."""
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


@njit(cache=True, nogil=True)
def _slot(table_keys: np.ndarray, table_stamp: np.ndarray, mask: np.uint64, key: np.uint64, stamp: int) -> np.int64:
    """Where `key` is, or would be, among the slots of this component (linear probing; other stamps are empty slots)."""
    slot = key & mask
    while table_stamp[slot] == stamp and table_keys[slot] != key:
        slot = (slot + _ONE) & mask
    return np.int64(slot)


@njit(cache=True, nogil=True)
def _propose(
    document: int,
    start: int,
    stamp: int,
    mask: np.uint64,
    keys: np.ndarray,
    rank: np.ndarray,
    tables: tuple[np.ndarray, ...],
    seen: np.ndarray,
    shared: np.ndarray,
    proposed: np.ndarray,
    listed: int,
) -> tuple[int, bool]:
    """The retained documents that share a band key, into `proposed`, best first; how many; was a list cut short?"""
    table_keys, table_stamp, table_head, table_size, link = tables
    bands, count, crowded = keys.shape[1], 0, False
    for band in range(bands):
        slot = _slot(table_keys, table_stamp, mask, keys[document, band], stamp)
        if table_stamp[slot] != stamp:
            continue
        crowded |= table_size[slot] > listed
        entry = table_head[slot]
        while entry != NONE:
            other = entry // bands - start
            if seen[other] != document:
                seen[other], shared[other] = document, 0
                proposed[count] = other
                count += 1
            shared[other] += 1
            entry = link[entry - start * bands]
    for i in range(count):
        other = proposed[i]
        proposed[i] = (np.int64(bands - shared[other]) << _RANK_BITS) | rank[start + other]
    proposed[:count].sort()
    return count, crowded


@njit(cache=True, nogil=True)
def _retain(
    document: int,
    start: int,
    stamp: int,
    mask: np.uint64,
    keys: np.ndarray,
    tables: tuple[np.ndarray, ...],
    listed: int,
) -> None:
    table_keys, table_stamp, table_head, table_size, link = tables
    bands = keys.shape[1]
    for band in range(bands):
        slot = _slot(table_keys, table_stamp, mask, keys[document, band], stamp)
        if table_stamp[slot] != stamp:
            table_keys[slot], table_stamp[slot], table_head[slot], table_size[slot] = (
                keys[document, band],
                stamp,
                NONE,
                0,
            )
        table_size[slot] += 1
        if table_size[slot] <= listed:
            entry = document * bands + band
            link[entry - start * bands] = table_head[slot]
            table_head[slot] = entry


@njit(cache=True, nogil=True)
def _judge(
    document: int,
    count: int,
    proposed: np.ndarray,
    offsets: np.ndarray,
    shingles: np.ndarray,
    by_rank: np.ndarray,
    threshold: float,
    measure: int,
    most: int,
    counts: np.ndarray,
) -> tuple[int, float]:
    """The first retained document at or above the threshold, and the Jaccard similarity; NONE if there is none."""
    begin, end = int(offsets[document]), int(offsets[document + 1])
    size, compared = end - begin, 0
    for i in range(count):
        other = int(by_rank[proposed[i] & _RANK])
        other_begin, other_end = int(offsets[other]), int(offsets[other + 1])
        other_size = other_end - other_begin
        possible = min(size, other_size) / (max(size, other_size) if measure == 0 else size)
        if possible < threshold:
            counts[RULED_OUT] += 1
            continue
        if compared == most:
            counts[CAPPED] += 1
            break
        compared += 1
        counts[COMPARISONS] += 1
        least = threshold / (1 + threshold) * (size + other_size) if measure == 0 else threshold * size
        both = common(shingles, begin, end, other_begin, other_end, least - 1.0)
        jaccard = both / (size + other_size - both)
        if (jaccard if measure == 0 else both / size) >= threshold:
            return other, jaccard
        counts[REJECTED] += 1
    return NONE, 0.0


@njit(cache=True, nogil=True)
def _verify(
    starts: np.ndarray,
    offsets: np.ndarray,
    shingles: np.ndarray,
    keys: np.ndarray,
    rank: np.ndarray,
    by_rank: np.ndarray,
    threshold: float,
    measure: int,
    most: int,
    listed: int,
    tables: tuple[np.ndarray, ...],
    seen: np.ndarray,
    shared: np.ndarray,
    representative: np.ndarray,
    jaccard: np.ndarray,
    counts: np.ndarray,
) -> None:
    proposed = np.empty(keys.shape[1] * listed, np.int64)
    for component in range(len(starts) - 1):
        start, stop = starts[component], starts[component + 1]
        slots = 2
        while slots < 2 * (stop - start) * keys.shape[1]:
            slots *= 2
        mask = np.uint64(slots - 1)
        for document in range(start, stop):
            count, crowded = _propose(
                document, start, component, mask, keys, rank, tables, seen, shared, proposed, listed
            )
            counts[CANDIDATES] += count
            other, similarity = _judge(
                document, count, proposed, offsets, shingles, by_rank, threshold, measure, most, counts
            )
            representative[document], jaccard[document] = other, similarity
            if other == NONE:
                counts[CROWDED] += crowded
                _retain(document, start, component, mask, keys, tables, listed)


@njit(cache=True, nogil=True)
def copy_lists(
    values: np.ndarray, offsets: np.ndarray, target: np.ndarray, target_offsets: np.ndarray, places: np.ndarray
) -> None:
    """List i of `values` to position places[i] among the lists of `target`."""
    for i in range(len(places)):
        begin = target_offsets[places[i]]
        for j in range(offsets[i + 1] - offsets[i]):
            target[begin + j] = values[offsets[i] + j]


def scratch_array(path: Path, shape: tuple[int, ...], kind: type) -> np.ndarray:
    """A zeroed array in a file: pages of it can leave memory, whatever its size. The file goes when the array does.

    Its space is taken at once: on a disk without room for it, touching a page would be a SIGBUS. Raises NoSpaceError.
    """
    if 0 in shape:
        return np.zeros(shape, kind)
    with scratch_errors(path), open(path, "w+b") as file:
        os.posix_fallocate(file.fileno(), 0, math.prod(shape) * np.dtype(kind).itemsize)
        array = np.asarray(np.memmap(file, kind, "r+", shape=shape))
    path.unlink()
    return array


def verify(documents: Documents, rules: Rules, scratch: Path) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """(representative, Jaccard similarity to it, counts): for each document the position of the retained document
    that it duplicates, or NONE where it is retained itself; counts by the names in COUNTED.
    """
    total, bands = documents.keys.shape
    largest = int(np.diff(documents.starts).max(initial=0))
    slots = 1 << max(1, (2 * largest * bands - 1).bit_length())
    tables = (
        scratch_array(scratch / "table-keys", (slots,), np.uint64),
        scratch_array(scratch / "table-stamp", (slots,), np.int64),
        scratch_array(scratch / "table-head", (slots,), np.int64),
        scratch_array(scratch / "table-size", (slots,), np.int64),
        scratch_array(scratch / "table-link", (largest * bands,), np.int64),
    )
    tables[1][:] = NONE
    seen, shared = np.full(largest, NONE, np.int64), np.zeros(largest, np.int64)
    representative, jaccard = np.empty(total, np.int64), np.empty(total, np.float64)
    counts = np.zeros(len(COUNTED), np.int64)
    _verify(
        documents.starts, documents.offsets, documents.shingles, documents.keys, documents.rank, documents.by_rank,
        float(rules.threshold), rules.measure, rules.most, rules.listed,
        tables, seen, shared, representative, jaccard, counts,
    )  # fmt: skip
    return representative, jaccard, dict(zip(COUNTED, counts.tolist(), strict=True))


def warm() -> None:
    """Compile or load the kernels, so that no task does."""
    values, offsets = np.frombuffer(bytes(16), np.uint64), np.frombuffer(bytes(24), np.int64)  # read-only, as Arrow's
    copy_lists(values, offsets, np.zeros(2, np.uint64), np.zeros(3, np.int64), np.zeros(2, np.int64))
    with tempfile.TemporaryDirectory() as folder:
        verify(
            Documents(
                starts=np.array([0, 2], np.int64),
                offsets=np.array([0, 1, 2], np.int64),
                shingles=np.ones(2, np.uint64),
                keys=np.ones((2, 1), np.uint64),
                rank=np.arange(2),
                by_rank=np.arange(2),
            ),
            Rules(1.0, 0, 1),
            Path(folder),
        )
