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
from datakit.text import hash_mixing, key_tables, shingle_kernels, unicode_words
from datakit.text.key_tables import first_row, leading_bits
from datakit.text.numba_cache import Decorator, cached_njit

_ZERO, _ONE, _SIX, _IN_WORD = np.uint64(0), np.uint64(1), np.uint64(6), np.uint64(63)
FIRST_CAPACITY = 1024

kernel: Decorator = cached_njit(
    characters, entry_index, symbol_kernels, key_tables, hash_mixing, shingle_kernels, unicode_words
)


class Found(NamedTuple):
    """What N documents contain of L lists.

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


class Open(NamedTuple):
    """The state of a document: the last span of each list, int64 [L, 2] (the second is -1 if there is none), and the
    symbol after the last match of each list, int64 [L].
    """

    spans: np.ndarray
    covered: np.ndarray


@kernel
def possible(block: Block, starts: int, count: int, size: int, bitmap: np.ndarray, flags: np.ndarray, bit: int) -> None:
    """Set a bit of `flags` for each of the first `starts` symbols at which an anchor of `size` symbols may begin."""
    shift = leading_bits(64 * len(bitmap))
    for i in range(min(starts, count - size + 1)):
        place = key_of(block, i, size) >> shift
        flags[i] |= np.uint8(((bitmap[place >> _SIX] >> (place & _IN_WORD)) & _ONE) << np.uint64(bit))


@kernel
def _chosen(block: Block, starts: int, flags: np.ndarray) -> int:
    """Write the positions with a flag to `block.chosen`; return their number."""
    found = 0
    for i in range(starts):
        block.chosen[found] = i
        found += int(flags[i] != 0)
    return found


@kernel
def with_room(rows: np.ndarray, used: int) -> np.ndarray:
    """Return the array, or a copy of twice the length if all of its rows are used."""
    if used < len(rows):
        return rows
    longer = np.empty((2 * len(rows), rows.shape[1]), rows.dtype)
    longer[:used] = rows[:used]
    return longer


@kernel
def _add_span(spans: np.ndarray, used: int, document: int, one: int, open_spans: np.ndarray) -> tuple[np.ndarray, int]:
    """Append the last span of a list, if there is one."""
    if open_spans[one, 1] < 0:
        return spans, used
    spans = with_room(spans, used)
    spans[used, 0], spans[used, 1] = document, one
    spans[used, 2], spans[used, 3] = open_spans[one, 0], open_spans[one, 1]
    open_spans[one, 1] = -1
    return spans, used + 1


@kernel
def _count(
    found: Found, state: Open, seen: np.ndarray, row: int, one: int, document: int, symbol: int, length: int
) -> None:
    """Count a match of entry `row` of list `one`, which begins at a symbol of the document."""
    found.occurrences[document, one] += 1
    if seen[row] != document + 1:
        seen[row] = document + 1
        found.distinct[document, one] += 1
    covered = state.covered[one]
    found.covered[document, one] += max(0, symbol + length - max(symbol, covered))
    state.covered[one] = max(covered, symbol + length)


@kernel
def _try_lengths(
    data: np.ndarray,
    start: int,
    stop: int,
    table: np.ndarray,
    index: Index,
    words: bool,
    block: Block,
    i: int,
    size: int,
    count: int,
    document: int,
    base: int,
    found: Found,
    state: Open,
    seen: np.ndarray,
    spans: np.ndarray,
    used: int,
) -> tuple[np.ndarray, int]:
    """Count the entries that begin at symbol `i` of the block and have an anchor of `size` symbols there."""
    entries, key = index.entries, key_of(block, i, size)
    anchor = first_row(index.anchors, leading_bits(len(index.anchors.directory) - 1), key)
    if anchor < 0:
        return spans, used
    shift, keys = leading_bits(len(entries.keys.directory) - 1), entries.keys.keys
    for place in range(np.int64(index.anchor_ends[anchor]), np.int64(index.anchor_ends[anchor + 1])):
        length = np.int64(index.lengths[place])
        if i + length > count:
            break
        key = key_of(block, i, length)
        row = first_row(entries.keys, shift, key)
        if row < 0:
            continue
        first = word_start(data, start, block.places[i], table) if words else block.places[i]
        while row < len(keys) and keys[row] == key:
            entry = entries.text[entries.offsets[row] : entries.offsets[row + 1]]
            end = match_end(data, first, stop, table, entry, words)
            if end >= 0 and not (words and ends_inside(data, start, first, end, stop, table)):
                one = entries.lists[row]
                _count(found, state, seen, row, one, document, base + i, length)
                if state.spans[one, 1] > first - start:
                    state.spans[one, 1] = max(state.spans[one, 1], end - start)
                else:
                    spans, used = _add_span(spans, used, document, one, state.spans)
                    state.spans[one, 0], state.spans[one, 1] = first - start, end - start
            row += 1
    return spans, used


@kernel
def search(data: np.ndarray, offsets: np.ndarray, table: np.ndarray, index: Index, words: bool, lists: int) -> Found:
    """Return what N documents contain of the lists of an index. data, offsets: see `string_buffers`. table: see
    `list_table`. words: as for the index.
    """
    documents = len(offsets) - 1
    found = Found(
        np.zeros(documents, np.int64),
        np.zeros((documents, lists), np.int64),
        np.zeros((documents, lists), np.int64),
        np.zeros((documents, lists), np.int64),
        np.empty((0, 4), np.int64),
    )
    spans, used = np.empty((FIRST_CAPACITY, 4), np.int64), 0
    state = Open(np.full((lists, 2), -1, np.int64), np.zeros(lists, np.int64))
    seen = np.zeros(len(index.entries.lists), np.uint32)
    block, flags = new_block(index.longest), np.empty(BLOCK + index.longest + 2, np.uint8)
    for document in range(documents):
        start, stop = offsets[document], offsets[document + 1]
        position, count, open_word, base = start, 0, _ZERO, 0
        state.covered[:] = 0
        while position < stop:
            before = count
            if words:
                position, count, open_word = read_words(
                    data, position, stop, table, block, count, BLOCK + index.longest, open_word
                )
                mix_words(block, before, count)
            else:
                position, count = read_characters(data, position, stop, table, block, count, BLOCK + index.longest)
            starts = count if position >= stop else count - index.longest + 1
            add_up(block, count)
            flags[:starts] = 0
            for bit in range(len(index.anchor_sizes)):
                possible(block, starts, count, index.anchor_sizes[bit], index.anchors.bitmap, flags, bit)
            for c in range(_chosen(block, starts, flags)):
                i = block.chosen[c]
                for bit in range(len(index.anchor_sizes)):
                    if (flags[i] >> np.uint8(bit)) & np.uint8(1):
                        spans, used = _try_lengths(
                            data, start, stop, table, index, words, block, i, index.anchor_sizes[bit], count,
                            document, base, found, state, seen, spans, used,
                        )  # fmt: skip
            for i in range(count - starts):
                block.symbols[i], block.places[i] = block.symbols[starts + i], block.places[starts + i]
            base, count = base + starts, count - starts
        found.totals[document] = base
        for one in range(lists):
            spans, used = _add_span(spans, used, document, one, state.spans)
    return Found(found.totals, found.occurrences, found.distinct, found.covered, spans[:used])
