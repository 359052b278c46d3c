"""Finds the entries of lists in texts, and counts them. A text is read in blocks of symbols; a bitmap shows for most
symbols that no entry begins with them.

A match depends on the text of its document alone. Memory: 40 bytes per stretch of matches that do not overlap.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.annotate.lists import characters, entry_index, symbol_kernels
from datakit.annotate.lists.entry_index import Index
from datakit.annotate.lists.symbol_kernels import (
    BLOCK,
    Block,
    add_up,
    ends_inside,
    key_of,
    match_end,
    mix_words,
    new_block,
    read_characters,
    read_words,
    word_start,
)
from datakit.text import growing_rows, hash_mixing, key_tables, shingle_kernels, unicode_words
from datakit.text.growing_rows import with_room
from datakit.text.key_tables import first_row, leading_bits
from datakit.text.numba_cache import Decorator, cached_njit

_ZERO, _ONE, _SIX, _IN_WORD = np.uint64(0), np.uint64(1), np.uint64(6), np.uint64(63)
FIRST_CAPACITY = 1024

kernel: Decorator = cached_njit(
    characters, entry_index, symbol_kernels, growing_rows, key_tables, hash_mixing, shingle_kernels, unicode_words
)


class Found(NamedTuple):
    """The matches of L lists in N documents.

    totals: int64 [N], the symbols of each document. occurrences, distinct, covered: int64 [N, L], the number of
    matches, the number of different entries that match, and the symbols that lie in a match. spans: int64 [S, 4],
    ascending by document: the document, the list, and the bytes [start, stop) in the document; matches of a list that
    overlap are one span.
    """

    totals: np.ndarray
    occurrences: np.ndarray
    distinct: np.ndarray
    covered: np.ndarray
    spans: np.ndarray


@kernel
def possible(
    sums: np.ndarray, power: np.uint64, starts: int, size: int, bitmap: np.ndarray, flags: np.ndarray, bit: int
) -> None:
    """Set a bit of `flags` for each of the first `starts` symbols at which an anchor of `size` symbols may begin."""
    shift = leading_bits(64 * len(bitmap))
    for i in range(starts):
        place = key_of(sums, power, i, size) >> shift
        flags[i] |= np.uint8(((bitmap[place >> _SIX] >> (place & _IN_WORD)) & _ONE) << np.uint64(bit))


@kernel
def _chosen(starts: int, flags: np.ndarray, chosen: np.ndarray) -> int:
    """Write the positions with a flag to `chosen`; return their number."""
    found = 0
    for i in range(starts):
        chosen[found] = i
        found += int(flags[i] != 0)
    return found


@kernel
def _find(
    data: np.ndarray,
    start: int,
    stop: int,
    table: np.ndarray,
    index: Index,
    words: bool,
    block: Block,
    starts: int,
    count: int,
    flags: np.ndarray,
    matches: np.ndarray,
) -> tuple[np.ndarray, int]:
    """Return the matches that begin at the first `starts` symbols of a block of `count` symbols, int64 [., 5], and how
    many there are: the row of the entry, the first symbol, the number of symbols, and the bytes [start, stop). flags: a
    buffer.
    """
    sums, powers, places, chosen, used = block.sums, block.powers, block.places, block.chosen, 0
    sizes, anchors, ends, lengths = index.anchor_sizes, index.anchors, index.anchor_ends, index.lengths
    entries, text, offsets = index.entries.keys, index.entries.text, index.entries.offsets
    anchor_shift, shift = leading_bits(len(anchors.directory) - 1), leading_bits(len(entries.directory) - 1)
    flags[:starts] = 0
    for bit in range(len(sizes)):
        size = sizes[bit]
        possible(sums, powers[size], min(starts, count - size + 1), size, anchors.bitmap, flags, bit)
    for c in range(_chosen(starts, flags, chosen)):
        i, first = chosen[c], -1
        for bit in range(len(sizes)):
            if not (flags[i] >> np.uint8(bit)) & np.uint8(1):
                continue
            size = sizes[bit]
            anchor = first_row(anchors, anchor_shift, key_of(sums, powers[size], i, size))
            if anchor < 0:
                continue
            for place in range(np.int64(ends[anchor]), np.int64(ends[anchor + 1])):
                length = np.int64(lengths[place])
                if i + length > count:
                    break
                key = key_of(sums, powers[length], i, length)
                row = first_row(entries, shift, key)
                if row < 0:
                    continue
                if first < 0:
                    first = word_start(data, start, places[i], table) if words else places[i]
                while row < len(entries.keys) and entries.keys[row] == key:
                    end = match_end(data, first, stop, table, text, offsets[row], offsets[row + 1], words)
                    if end >= 0 and not (words and ends_inside(data, start, first, end, stop, table)):
                        matches = with_room(matches, used)
                        matches[used, 0], matches[used, 1], matches[used, 2] = row, i, length
                        matches[used, 3], matches[used, 4] = first - start, end - start
                        used += 1
                    row += 1
    return matches, used


@kernel
def _count(
    matches: np.ndarray, used: int, document: int, base: int, lists: np.ndarray, occurrences: np.ndarray,
    distinct: np.ndarray, covered: np.ndarray, seen: np.ndarray, state: np.ndarray, spans: np.ndarray, rows: int,
) -> tuple[np.ndarray, int]:  # fmt: skip
    """Count the matches of a block of a document, and merge those that overlap into spans. base: the number of the
    block's first symbol in the document. state: int64 [L, 3]: of each list, the bytes [start, stop) of its last span
    (stop is -1 if there is none), and the symbol after its last match.
    """
    for m in range(used):
        row, symbol, start, stop = matches[m, 0], base + matches[m, 1], matches[m, 3], matches[m, 4]
        one, end = lists[row], symbol + matches[m, 2]
        occurrences[document, one] += 1
        if seen[row] != document + 1:
            seen[row] = document + 1
            distinct[document, one] += 1
        covered[document, one] += max(0, end - max(symbol, state[one, 2]))
        state[one, 2] = max(state[one, 2], end)
        if state[one, 1] > start:
            state[one, 1] = max(state[one, 1], stop)
            continue
        spans, rows = _add_span(spans, rows, document, one, state)
        state[one, 0], state[one, 1] = start, stop
    return spans, rows


@kernel
def _add_span(spans: np.ndarray, used: int, document: int, one: int, state: np.ndarray) -> tuple[np.ndarray, int]:
    """Append the last span of a list, if there is one."""
    if state[one, 1] < 0:
        return spans, used
    spans = with_room(spans, used)
    spans[used, 0], spans[used, 1] = document, one
    spans[used, 2], spans[used, 3] = state[one, 0], state[one, 1]
    return spans, used + 1


@kernel
def search(data: np.ndarray, offsets: np.ndarray, table: np.ndarray, index: Index, words: bool, lists: int) -> Found:
    """Return the matches of the lists of an index in N documents. data, offsets: see `string_buffers`. table: see
    `list_table`. words: as for the index.
    """
    documents = len(offsets) - 1
    totals, occurrences = np.zeros(documents, np.int64), np.zeros((documents, lists), np.int64)
    distinct, covered = np.zeros((documents, lists), np.int64), np.zeros((documents, lists), np.int64)
    spans, rows, state = np.empty((FIRST_CAPACITY, 4), np.int64), 0, np.empty((lists, 3), np.int64)
    matches, seen = np.empty((FIRST_CAPACITY, 5), np.int64), np.zeros(len(index.entries.lists), np.uint32)
    block, limit = new_block(index.longest), BLOCK + index.longest
    flags = np.empty(limit + 2, np.uint8)
    for document in range(documents):
        start, stop = offsets[document], offsets[document + 1]
        position, count, open_word, base = start, 0, _ZERO, 0
        for one in range(lists):
            state[one, 0], state[one, 1], state[one, 2] = 0, -1, 0
        while position < stop:
            before = count
            if words:
                position, count, open_word = read_words(data, position, stop, table, block, count, limit, open_word)
                mix_words(block, before, count)
            else:
                position, count = read_characters(data, position, stop, table, block, count, limit)
            starts = count if position >= stop else count - index.longest + 1
            add_up(block, count)
            matches, used = _find(data, start, stop, table, index, words, block, starts, count, flags, matches)
            if used:
                spans, rows = _count(
                    matches, used, document, base, index.entries.lists, occurrences, distinct, covered, seen, state,
                    spans, rows,
                )  # fmt: skip
            for i in range(count - starts):
                block.symbols[i], block.places[i] = block.symbols[starts + i], block.places[starts + i]
            base, count = base + starts, count - starts
        totals[document] = base
        for one in range(lists):
            spans, rows = _add_span(spans, rows, document, one, state)
    return Found(totals, occurrences, distinct, covered, spans[:rows])
