"""Turns matches into hits: groups the matches of each document by item, counts them, and merges their byte spans. Only
documents with matches are read again, to find the bytes of their words.

The cost per document is that of sorting its matches, and one entry for each pair of a matching n-gram and an item that
has this n-gram. The spans of only `max_hits` items are computed, so a text that repeats a phrase of many items is not
slow.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.annotate.contamination import index, ngram_hashes, search_kernels
from datakit.annotate.contamination.index import Index
from datakit.annotate.contamination.ngram_hashes import word_bounds
from datakit.text import growing_rows, hash_mixing, key_tables, shingle_kernels, unicode_words
from datakit.text.growing_rows import with_room
from datakit.text.numba_cache import Decorator, cached_njit

_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)

kernel: Decorator = cached_njit(
    index, ngram_hashes, search_kernels, growing_rows, key_tables, hash_mixing, shingle_kernels, unicode_words
)


class Hits(NamedTuple):
    """The hits of N documents.

    items: int64 [N], the number of items of which a document contains an n-gram. hits: int64 [H, 3]: the item, the
    number of its n-grams found, and the index after its last span. hit_ends: int64 [N], the index after a document's
    last hit. hit_spans: uint64 [., 2], the bytes [start, stop) of the hits' words, in their document. spans and
    span_ends: the same for all matches of a document together.
    """

    items: np.ndarray
    hits: np.ndarray
    hit_ends: np.ndarray
    hit_spans: np.ndarray
    spans: np.ndarray
    span_ends: np.ndarray


@kernel
def byte_spans(data: np.ndarray, start: int, stop: int, table: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """Return the bytes of each match of a document, counted from its start, as uint64 [matches]: 32 bits for the first
    byte, and 32 for the byte after the last one.
    """
    most = (stop - start + 1) // 2 + 1  # a word takes at least two bytes, including the separator
    starts, stops = np.empty(most, np.int64), np.empty(most, np.int64)
    word_bounds(data, start, stop, table, starts, stops)
    packed = np.empty(len(matches), np.uint64)
    for i in range(len(matches)):
        first, length = matches[i, 1], matches[i, 2]
        begin, end = starts[first] - start, stops[first + length - 1] - start
        packed[i] = (np.uint64(begin) << _HALF) | np.uint64(end)
    return packed


@kernel
def merge_spans(packed: np.ndarray, spans: np.ndarray, used: int) -> tuple[np.ndarray, int]:
    """Sort packed spans, and append them to `spans`, those that overlap or touch as one. Return the array, which may
    have been replaced by a longer one, and the number of its rows in use.
    """
    packed.sort()
    first = used
    for span in packed:
        start, stop = span >> _HALF, span & _LOW
        if used > first and start <= spans[used - 1, 1]:
            spans[used - 1, 1] = max(spans[used - 1, 1], stop)
            continue
        spans = with_room(spans, used)
        spans[used, 0], spans[used, 1] = start, stop
        used += 1
    return spans, used


@kernel
def distinct_ngrams(matches: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the order of a document's matches by n-gram, where each n-gram begins in this order (with the end), and
    the n-grams' rows in the index.
    """
    order = np.argsort(matches[:, 3], kind="mergesort")
    begins, rows, count = np.empty(len(order) + 1, np.int64), np.empty(len(order), np.int64), 0
    for i in range(len(order)):
        row = matches[order[i], 3]
        if i == 0 or row != rows[count - 1]:
            begins[count], rows[count] = i, row
            count += 1
    begins[count] = len(order)
    return order, begins[: count + 1], rows[:count]


@kernel
def item_pairs(index: Index, rows: np.ndarray) -> np.ndarray:
    """Return the pairs of an item and a matching n-gram, sorted, uint64: 32 bits for the item, 32 for the position of
    the n-gram in `rows`.
    """
    total = 0
    for row in rows:
        total += np.int64(index.ends[row + 1]) - np.int64(index.ends[row])
    pairs, used = np.empty(total, np.uint64), 0
    for i in range(len(rows)):
        for posting in range(np.int64(index.ends[rows[i]]), np.int64(index.ends[rows[i] + 1])):
            pairs[used] = (np.uint64(index.postings[posting]) << _HALF) | np.uint64(i)
            used += 1
    pairs.sort()
    return pairs


@kernel
def ranked_items(index: Index, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where the pairs of each item begin (with the end), and the order of the items: the largest overlap first,
    and of equal ones the item with the lower number.
    """
    begins, shares, count = np.empty(len(pairs) + 1, np.int64), np.empty(len(pairs), np.float64), 0
    for i in range(len(pairs)):
        if i == 0 or pairs[i] >> _HALF != pairs[i - 1] >> _HALF:
            begins[count] = i
            count += 1
    begins[count] = len(pairs)
    for i in range(count):
        item = pairs[begins[i]] >> _HALF
        shares[i] = -(begins[i + 1] - begins[i]) / np.float64(index.item_ngrams[item])
    return begins[: count + 1], np.argsort(shares[:count], kind="mergesort")


@kernel
def hit_occurrences(pairs: np.ndarray, packed: np.ndarray, order: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """Return the packed spans of all matches of one item. pairs: those of the item. order, begins: see
    `distinct_ngrams`.
    """
    total = 0
    for pair in pairs:
        total += begins[np.int64(pair & _LOW) + 1] - begins[np.int64(pair & _LOW)]
    chosen, used = np.empty(total, np.uint64), 0
    for pair in pairs:
        ngram = np.int64(pair & _LOW)
        for i in range(begins[ngram], begins[ngram + 1]):
            chosen[used] = packed[order[i]]
            used += 1
    return chosen


@kernel
def group(
    data: np.ndarray, offsets: np.ndarray, table: np.ndarray, index: Index, matches: np.ndarray, max_hits: int
) -> Hits:
    """Return the hits of all documents. matches: see `search_kernels.search`."""
    documents = len(offsets) - 1
    items, hit_ends = np.zeros(documents, np.int64), np.zeros(documents, np.int64)
    span_ends, hits, hits_used = np.zeros(documents, np.int64), np.empty((64, 3), np.int64), 0
    hit_spans, hit_spans_used = np.empty((64, 2), np.uint64), 0
    spans, spans_used = np.empty((64, 2), np.uint64), 0
    low = 0
    for document in range(documents):
        high = low
        while high < len(matches) and matches[high, 0] == document:
            high += 1
        if high > low:
            own = matches[low:high]
            packed = byte_spans(data, offsets[document], offsets[document + 1], table, own)
            order, begins, rows = distinct_ngrams(own)
            pairs = item_pairs(index, rows)
            item_begins, ranking = ranked_items(index, pairs)
            items[document] = len(ranking)
            for i in ranking[:max_hits]:
                mine = pairs[item_begins[i] : item_begins[i + 1]]
                chosen = hit_occurrences(mine, packed, order, begins)
                hit_spans, hit_spans_used = merge_spans(chosen, hit_spans, hit_spans_used)
                hits = with_room(hits, hits_used)
                hits[hits_used, 0], hits[hits_used, 1] = np.int64(mine[0] >> _HALF), len(mine)
                hits[hits_used, 2] = hit_spans_used
                hits_used += 1
            spans, spans_used = merge_spans(packed, spans, spans_used)
        hit_ends[document], span_ends[document] = hits_used, spans_used
        low = high
    return Hits(items, hits[:hits_used], hit_ends, hit_spans[:hit_spans_used], spans[:spans_used], span_ends)
