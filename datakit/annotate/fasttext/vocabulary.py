"""Reads the dictionary of a fastText model: its words, its labels, and which hashes of n-grams have a vector.

The format is that of `Dictionary::load` in fastText 0.9.2. Words and labels stay bytes in one array, and are found by
their FNV-1a hash in a table with open addressing, so a model with millions of words loads in well under a second.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.annotate.fasttext import fnv
from datakit.annotate.fasttext.file_cursor import FileCursor
from datakit.annotate.fasttext.fnv import fnv_step
from datakit.annotate.fasttext.label_tree import LARGEST_COUNT
from datakit.text.numba_cache import Decorator, cached_njit

LABEL_PREFIX = "__label__"  # fastText's default; a model does not store another
MOST_PRUNED_BUCKETS = 1 << 26  # bounds the memory for a file of a given size; fastText's default is 2 million
kernel: Decorator = cached_njit(fnv)


class Vocabulary(NamedTuple):
    """The entries of a dictionary: first `words` words, then the labels.

    names: uint8, the bytes of all entries. starts, stops: int64 [entries], where each name lies in `names`.
    table: int32 [power of two], entry numbers by hash, -1 if free. words: the number of words.
    """

    names: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    table: np.ndarray
    words: int


class Dictionary(NamedTuple):
    """A vocabulary, the labels without their prefix, the labels' counts in training, int64, and `pruned`: for each
    bucket, the number of its vector among those of the buckets, or -1, int32 [buckets]. `pruned` is None if all buckets
    have vectors. vectors: the number of rows of the input matrix.
    """

    vocabulary: Vocabulary
    labels: tuple[str, ...]
    label_counts: np.ndarray
    pruned: np.ndarray | None
    vectors: int


def read_dictionary(cursor: FileCursor, buckets: int) -> Dictionary:
    """Read the dictionary. Raises UnreadableError if its numbers contradict one another or the file's size."""
    entries, words, labels, _, pruned_count = cursor.integers("3i2q")
    cursor.require(words >= 0 and labels >= 1 and entries == words + labels, "the numbers of words and labels disagree")
    cursor.require(10 * entries <= len(cursor.data), "it ends inside its dictionary")
    starts, stops = np.empty(entries, np.int64), np.empty(entries, np.int64)
    counts, kinds = np.empty(entries, np.int64), np.empty(entries, np.uint8)
    begin = cursor.position
    end = _read_entries(cursor.data, begin, starts, stops, counts, kinds)
    cursor.require(end >= 0, "it ends inside its dictionary")
    cursor.skip(end - begin, "its dictionary")
    cursor.require(not kinds[:words].any() and bool((kinds[words:] == 1).all()), "its words and labels are mixed")
    cursor.require(counts[words:].min() >= 0 and counts[words:].max() < LARGEST_COUNT, "a label has an invalid count")
    names = cursor.data[begin:end].copy()
    starts, stops = starts - begin, stops - begin
    table = np.full(1 << (2 * entries).bit_length(), -1, np.int32)
    _fill(names, starts, stops, table)
    found = tuple(_label(cursor, names[starts[i] : stops[i]].tobytes()) for i in range(words, entries))
    pruned, vectors = _read_pruned(cursor, pruned_count, buckets)
    vocabulary = Vocabulary(names, starts, stops, table, words)
    return Dictionary(vocabulary, found, counts[words:], pruned, words + vectors)


def _label(cursor: FileCursor, name: bytes) -> str:
    try:
        return name.decode().removeprefix(LABEL_PREFIX)
    except UnicodeDecodeError:
        cursor.require(False, "a label is not UTF-8")
        raise


def _read_pruned(cursor: FileCursor, count: int, buckets: int) -> tuple[np.ndarray | None, int]:
    """Return the list described at `Dictionary.pruned`, and how many buckets have vectors."""
    if count < 0:  # fastText writes -1 if no bucket was removed
        return None, buckets
    cursor.require(buckets <= MOST_PRUNED_BUCKETS, f"it has {buckets} buckets for its n-grams")
    pairs = cursor.array("<i4", 2 * count, "its list of buckets").reshape(count, 2)
    vectors = np.full(buckets, -1, np.int32)
    if count:
        cursor.require(pairs.min() >= 0 and pairs[:, 0].max() < buckets, "its list of buckets has an invalid hash")
        cursor.require(pairs[:, 1].max() < count, "its list of buckets has an invalid row")
        vectors[pairs[:, 0]] = pairs[:, 1]
    return vectors, count


@kernel
def _read_entries(
    data: np.ndarray, position: int, starts: np.ndarray, stops: np.ndarray, counts: np.ndarray, kinds: np.ndarray
) -> int:
    """Read entries: a name that ends with a zero byte, an int64 and a byte each. Return the position after the last, or
    -1 if the data ends earlier.
    """
    for entry in range(len(starts)):
        starts[entry] = position
        while position < len(data) and data[position] != 0:
            position += 1
        stops[entry] = position
        if position + 10 > len(data):
            return -1
        count = np.int64(0)
        for i in range(8):
            count |= np.int64(data[position + 1 + i]) << np.int64(8 * i)
        counts[entry] = count
        kinds[entry] = data[position + 9]
        position += 10
    return position


@kernel
def name_hash(data: np.ndarray, start: int, stop: int) -> np.uint64:
    """Return the FNV-1a hash of the bytes `data[start:stop]`."""
    code = fnv.BASIS
    for i in range(start, stop):
        code = fnv_step(code, fnv.extended(data[i]))
    return code


@kernel
def slot_of(vocabulary_names: np.ndarray, starts: np.ndarray, stops: np.ndarray, table: np.ndarray,
            data: np.ndarray, start: int, stop: int, code: np.uint64) -> int:  # fmt: skip
    """Return the slot of `table` that holds the entry named `data[start:stop]`, or the free slot where it belongs.
    code: the name's hash.
    """
    mask = len(table) - 1
    slot = int(np.int64(code)) & mask
    while table[slot] >= 0:
        entry = table[slot]
        if stops[entry] - starts[entry] == stop - start:
            same = True
            for i in range(stop - start):
                if vocabulary_names[starts[entry] + i] != data[start + i]:
                    same = False
                    break
            if same:
                return slot
        slot = (slot + 1) & mask
    return slot


@kernel
def _fill(names: np.ndarray, starts: np.ndarray, stops: np.ndarray, table: np.ndarray) -> None:
    """Enter all entries into the table. Of entries with equal names, the last is kept, as in fastText."""
    for entry in range(len(starts)):
        code = name_hash(names, starts[entry], stops[entry])
        table[slot_of(names, starts, stops, table, names, starts[entry], stops[entry], code)] = entry
