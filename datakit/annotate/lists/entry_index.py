"""Builds the index of the entries of all lists of one kind.

An entry is a sequence of symbols: of words, or of characters. Its *key* is a hash of all symbols. Its *anchor* is the
key of its first symbols: of one or two words, or of the largest of 1, 2, 4, 8 and 16 characters. So a text is searched
with two keys per word, or five per character; where an anchor occurs, the lengths of the entries that begin with it are
tried. A match is compared with the entry before it counts, so a hash collision is never reported as a match.

Memory: 40 to 70 bytes per entry and the bytes of the entries; three times as much while the index is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from datakit.annotate.lists.characters import list_table
from datakit.annotate.lists.symbol_kernels import entry_keys
from datakit.errors import InputError
from datakit.text.key_tables import Table, new_table
from datakit.text.string_buffers import string_buffers

CHARACTER_ANCHORS = (1, 2, 4, 8, 16)
WORD_ANCHORS = (1, 2)
MOST_ENTRIES = 2**31 - 1


class Entries(NamedTuple):
    """The E entries of all lists, in the order of their keys.

    keys: the keys, sorted; entries of several lists may have the same one. text: uint8, the bytes of all entries.
    offsets: int64 [E + 1], where each entry begins in `text`. lists: int64 [E], the number of its list.
    """

    keys: Table
    text: np.ndarray
    offsets: np.ndarray
    lists: np.ndarray


class Index(NamedTuple):
    """Entries with the structures that find them in a sequence of symbols.

    anchors: A distinct keys. anchor_ends: uint32 [A + 1], where the lengths of each anchor begin in `lengths`, uint16:
    the numbers of symbols of the entries with this anchor, ascending. anchor_sizes: int64, the numbers of symbols of
    anchors, ascending. longest: the number of symbols of the longest entry.
    """

    entries: Entries
    anchors: Table
    anchor_ends: np.ndarray
    lengths: np.ndarray
    anchor_sizes: np.ndarray
    longest: int


def sorted_entries(texts: pa.Array, lists: np.ndarray, keys: np.ndarray) -> tuple[Entries, np.ndarray]:
    """Return the entries in the order of their keys, and this order. Raises InputError if there are too many."""
    if len(keys) > MOST_ENTRIES:
        raise InputError(f"the lists have {len(keys):,} entries; {MOST_ENTRIES:,} are possible")
    order = np.argsort(keys, kind="stable")
    text, offsets = string_buffers(texts.take(pa.array(order)))
    used = text[offsets[0] : offsets[-1]] if len(order) else text
    return Entries(new_table(keys[order]), used, _read_only(offsets - offsets[0]), _read_only(lists[order])), order


def build_index(lists: Sequence[pa.Array], words: bool) -> Index:
    """Return the index of some lists. lists: the entries of each, large_string, as `read_list` returns them. words:
    True if their symbols are words.
    """
    texts = pa.concat_arrays([pa.array([], pa.large_string()), *lists])
    numbers = np.repeat(np.arange(len(lists)), [len(one) for one in lists])
    sizes = np.array(WORD_ANCHORS if words else CHARACTER_ANCHORS, np.int64)
    data, offsets = string_buffers(texts)
    count = len(texts)
    keys, anchors, lengths = np.empty(count, np.uint64), np.empty(count, np.uint64), np.empty(count, np.uint16)
    anchor_sizes = np.empty(count, np.int64)
    entry_keys(data, offsets, list_table(), words, sizes, keys, anchors, lengths, anchor_sizes)
    entries, _ = sorted_entries(texts, numbers, keys)
    distinct, ends, chosen = _anchors(anchors, lengths)
    longest = int(lengths.max(initial=1))
    return Index(entries, new_table(distinct), ends, chosen, _read_only(np.unique(anchor_sizes)), longest)


def _anchors(anchors: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct anchors, and `anchor_ends` and `lengths` of the index."""
    order = np.lexsort((lengths, anchors))
    anchors, lengths = anchors[order], lengths[order]
    new = np.ones(len(anchors), bool)
    new[1:] = (anchors[1:] != anchors[:-1]) | (lengths[1:] != lengths[:-1])
    anchors, lengths = anchors[new], lengths[new]
    distinct, first = np.unique(anchors, return_index=True)
    return distinct, _read_only(np.append(first, len(anchors)).astype(np.uint32)), _read_only(lengths)


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
