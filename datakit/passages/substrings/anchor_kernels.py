"""Implements the compiled loop that divides the substrings of texts among anchors.

All substrings have `size` bytes. An anchor is the k-gram of a substring with the smallest hash; of several, the first
one. So equal substrings have equal anchors at equal distances from their beginnings (winnowing). Consecutive substrings
with the same anchor form a stretch, which is hashed as a whole. If stretches follow one another whose texts are equal,
as in a run of spaces, they are written once, with their number. Each substring belongs to exactly one stretch.

The hashes of k-grams and of stretches come from those of prefixes, and the smallest hashes from prefixes and suffixes
of groups of k-grams. So the cost does not depend on `size`, whatever the text: about 10 ns per byte. Memory: blocks of
`settings.block` bytes are hashed at a time, 32 bytes per byte of a block.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.passages.substrings import polynomial
from datakit.passages.substrings.polynomial import difference, times
from datakit.text import hash_mixing
from datakit.text.hash_mixing import GOLDEN, mix
from datakit.text.numba_cache import Decorator, cached_njit

CONTINUATION, LEAD = 0x80, 0xC0  # the first two bits of bytes in UTF-8 characters of several bytes
BEFORE, BOTH = 2, 3  # the edges of a stretch: 2 bits for its start, then 2 bits for its stop

kernel: Decorator = cached_njit(polynomial, hash_mixing)
_mix = kernel(mix)


class Settings(NamedTuple):
    """The settings of a search for kernels. size: the bytes of a substring. gram: those of a k-gram. first, second: the
    powers of the two bases, uint64 [more than 2 * size]. seed: a number that distinguishes searches. block: how many
    substrings are hashed at a time.
    """

    size: int
    gram: int
    first: np.ndarray
    second: np.ndarray
    seed: np.uint64
    block: int


class Work(NamedTuple):
    """Arrays for a block: the hashes of its prefixes, those of its k-grams, and some k-grams."""

    first: np.ndarray
    second: np.ndarray
    grams: np.ndarray
    queue: np.ndarray


class Stretches(NamedTuple):
    """Found stretches. texts: the index of each one's text. starts: its position. substrings: how many substrings it
    has. repeats: how often it follows itself. anchors, high, low: the hashes of its anchor and of its text. edges: how
    many bytes at its start (2 bits) and at its stop (2 bits) belong to characters that are not inside as a whole.
    """

    texts: np.ndarray
    starts: np.ndarray
    substrings: np.ndarray
    repeats: np.ndarray
    anchors: np.ndarray
    high: np.ndarray
    low: np.ndarray
    edges: np.ndarray


@kernel
def between(prefixes: np.ndarray, start: int, stop: int, powers: np.ndarray) -> np.uint64:
    """Return the hash of the bytes from `start` to `stop`."""
    return difference(prefixes[stop], times(prefixes[start], powers[stop - start]))


@kernel
def edges_of(data: np.ndarray, start: int, stop: int) -> int:
    """Return the edges of `data[start:stop]`, which has at least 8 bytes."""
    before = 0
    while before < 3 and data[start + before] & LEAD == CONTINUATION:
        before += 1
    after = 0
    for back in range(1, 4):
        octet = data[stop - back]
        if octet & LEAD == LEAD:
            width = 2 if octet < 0xE0 else 3 if octet < 0xF0 else 4
            after = back if width > back else 0
        if octet & LEAD != CONTINUATION:
            break
    return before | after << BEFORE


@kernel
def _hash_block(data: np.ndarray, base: int, length: int, settings: Settings, work: Work) -> None:
    """Hash the prefixes of `data[base:base + length]`, and its k-grams."""
    first, second = np.uint64(0), np.uint64(0)
    work.first[0], work.second[0] = first, second
    one, two = settings.first[1], settings.second[1]
    for i in range(length):
        value = np.uint64(data[base + i]) + np.uint64(1)
        first, second = times(first, one) + value, times(second, two) + value
        work.first[i + 1], work.second[i + 1] = first, second
    for i in range(length - settings.gram + 1):
        work.grams[i] = _mix(between(work.first, i, i + settings.gram, settings.first) ^ settings.seed)


@kernel
def _write(
    data: np.ndarray, base: int, place: tuple[int, int, int, int, int], settings: Settings, work: Work,
    found: Stretches, count: int,
) -> int:  # fmt: skip
    """Write a stretch, or count it as a repetition of the last one. Return the new number of stretches.

    place: the index of the text, the position of the block, and in the block that of the anchor, of the first
    substring, and the end of the substrings.
    """
    text, position, anchor, start, end = place
    stop, start_in_text = end - 1 + settings.size, position + start
    key = _mix(work.grams[anchor] + GOLDEN)  # the smallest hashes are not spread evenly
    high = _mix(between(work.first, start, stop, settings.first) ^ settings.seed)
    low = between(work.second, start, stop, settings.second)
    last, substrings = count - 1, end - start
    if (
        count
        and found.anchors[last] == key
        and found.high[last] == high
        and found.low[last] == low
        and found.texts[last] == text
        and found.substrings[last] == substrings
        and found.starts[last] + substrings * found.repeats[last] == start_in_text
    ):
        found.repeats[last] += 1
        return count
    found.texts[count], found.starts[count], found.substrings[count] = text, start_in_text, substrings
    found.repeats[count], found.anchors[count] = 1, key
    found.high[count], found.low[count] = high, low
    found.edges[count] = edges_of(data, base + start, base + stop)
    return count + 1


@kernel
def _suffix_minima(grams: np.ndarray, start: int, stop: int, queue: np.ndarray) -> int:
    """Write the k-grams that are the smallest one between themselves and `stop` to the end of `queue`, ascending. Of
    equal ones, the first one counts as the smallest. Return where they begin.
    """
    head, least = len(queue), grams[stop - 1]
    for gram in range(stop - 1, start - 1, -1):
        if grams[gram] <= least:
            head, least = head - 1, grams[gram]
            queue[head] = gram
    return head


@kernel
def _find_in_block(
    data: np.ndarray, base: int, block: tuple[int, int, int], settings: Settings, work: Work, found: Stretches,
    count: int,
) -> int:  # fmt: skip
    """Write the stretches of a block. block: the index of its text, its position there, and the number of its
    substrings. Return the new number of stretches.

    The substrings are read in groups of as many as a substring has k-grams. The k-grams of a substring are some of the
    last ones of its group, and some of the first ones of the next group.
    """
    text, position, substrings = block
    grams, queue, each = work.grams, work.queue, settings.size - settings.gram + 1
    _hash_block(data, base, substrings - 1 + settings.size, settings, work)
    begin, anchor = 0, -1
    for group in range(0, substrings, each):
        head, later = _suffix_minima(grams, group, group + each, queue), -1
        least = np.uint64(0)
        for start in range(group, min(group + each, substrings)):
            new = start + each - 1
            if start > group and (later < 0 or grams[new] < least):
                later, least = new, grams[new]
            if queue[head] < start:
                head += 1
            best = later if later >= 0 and least < grams[queue[head]] else queue[head]
            if best != anchor:
                if anchor >= 0:
                    count = _write(data, base, (text, position, anchor, begin, start), settings, work, found, count)
                anchor, begin = best, start
    return _write(data, base, (text, position, anchor, begin, substrings), settings, work, found, count)


@kernel
def find_stretches(
    data: np.ndarray, offsets: np.ndarray, settings: Settings, work: Work, text: int, position: int, found: Stretches
) -> tuple[int, int, int]:
    """Write the stretches of texts to `found` until it may be full or the texts end. It needs room for a block.

    text, position: where to begin; (0, 0) in the first call. Returns the number of stretches, and where to begin in the
    next call; `text` is the number of texts if there are no more.
    """
    count, room = 0, len(found.texts)
    while text < len(offsets) - 1:
        base = offsets[text]
        total = offsets[text + 1] - base - settings.size + 1
        while position < total:
            substrings = min(settings.block, total - position)
            if room - count < substrings:
                return count, text, position
            block = (text, position, substrings)
            count = _find_in_block(data, base + position, block, settings, work, found, count)
            position += substrings
        text, position = text + 1, 0
    return count, text, 0
