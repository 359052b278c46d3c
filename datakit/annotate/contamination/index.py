"""Builds the index of all evaluation sets: from n-grams to items.

A passage of at least `ngram` words contributes all of its n-grams. A shorter passage contributes itself as one n-gram
of fewer words, and the key of its first `min_words` words, its *anchor*. So a document is searched for short passages
of all lengths with only one more key per word: where an anchor occurs, the lengths that begin with it are tried.

Memory: 16 bytes per distinct n-gram, 4 per n-gram and item, and 3 to 6 for the table that finds the n-grams. While
the index is built, it takes about four times as much. Building is linear except for one sort.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.annotate.contamination.evaluation_sets import Passages
from datakit.annotate.contamination.index_kernels import Extracted, extract
from datakit.annotate.contamination.ngram_hashes import measure
from datakit.errors import InputError
from datakit.text.key_tables import Table, new_table
from datakit.text.string_buffers import string_buffers
from datakit.text.unicode_words import character_table

MOST = 2**32 - 1  # of items, n-grams, and pairs of them: the numbers have 32 bits


class Index(NamedTuple):
    """The n-grams of N items.

    ngrams: the keys of the K distinct n-grams, sorted. checks: uint32 [K]. ends: uint32 [K + 1], where the items of
    each n-gram begin in `postings`, uint32. item_ngrams: uint32 [N], the number of distinct n-grams of each item.
    anchors: the keys of the first words of short passages. anchor_lengths: uint64, one per anchor: bit i is set if a
    passage of i words begins so.
    """

    ngrams: Table
    checks: np.ndarray
    ends: np.ndarray
    postings: np.ndarray
    item_ngrams: np.ndarray
    anchors: Table
    anchor_lengths: np.ndarray


def build_index(passages: Passages, ngram: int, min_words: int, min_characters: int) -> Index:
    """Return the index of these passages. Raises InputError if there are more than 2**32 - 1 n-grams."""
    data, offsets = string_buffers(passages.texts)
    words, characters = np.empty(len(offsets) - 1, np.int64), np.empty(len(offsets) - 1, np.int64)
    measure(data, offsets, character_table(), words, characters)
    short = (words < ngram) & (words >= min_words) & (characters >= min_characters)
    counts = np.where(short, 1, np.maximum(words - ngram + 1, 0))
    if max(int(counts.sum()), passages.set_starts[-1]) > MOST:
        raise InputError(f"the evaluation sets have more than {MOST:,} n-grams or items; use fewer sets at a time")
    items = passages.items.to_numpy().astype(np.uint32)
    longest = int(words.max(initial=0))
    extracted = extract(data, offsets, character_table(), ngram, min_words, items, counts, short, longest)
    return _index_of(extracted, passages.set_starts[-1])


def _index_of(extracted: Extracted, items: int) -> Index:
    keys, checks, ends, postings = group_by_ngram(extracted.keys, extracted.checks, extracted.items)
    item_ngrams = np.bincount(postings, minlength=items).astype(np.uint32)
    anchors, inverse = np.unique(extracted.anchors, return_inverse=True)
    lengths = np.zeros(len(anchors), np.uint64)
    np.bitwise_or.at(lengths, inverse, np.uint64(1) << extracted.lengths)
    return Index(new_table(keys), checks, ends, postings, item_ngrams, new_table(anchors), lengths)


def group_by_ngram(
    keys: np.ndarray, checks: np.ndarray, items: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sort n-grams, remove repeats in one item, and return (keys, checks, ends, postings) as in `Index`. The items of
    the input are ascending. Two n-grams with the same key and different checks remain different.
    """
    order = np.argsort(keys, kind="stable")
    keys, checks, items = keys[order], checks[order], items[order]
    if np.any((keys[1:] == keys[:-1]) & (checks[1:] != checks[:-1])):  # about never, so the slow sort does not matter
        order = np.lexsort((items, checks, keys))
        keys, checks, items = keys[order], checks[order], items[order]
    del order
    new = np.ones(len(keys), bool)
    new[1:] = (keys[1:] != keys[:-1]) | (checks[1:] != checks[:-1])
    kept = new.copy()
    kept[1:] |= items[1:] != items[:-1]
    first = np.flatnonzero(new)
    before = np.cumsum(kept, dtype=np.int64) - 1  # the number of postings before a kept row
    ends = np.append(before[first], int(kept.sum())).astype(np.uint32)
    return keys[first], checks[first], ends, items[kept]
