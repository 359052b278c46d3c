"""Defines the arrays on which the verification kernels work. All of them may be memory-mapped."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NONE = -1  # the representative of a retained document, and the end of a list in `Index`


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
    documents share the slot's key, including those not listed and those of earlier blocks.
    """

    keys: np.ndarray
    stamp: np.ndarray
    head: np.ndarray
    size: np.ndarray
    link: np.ndarray


class Proposals(NamedTuple):
    """Scratch space for the candidates of a document. seen: for each earlier document of the component, the mark of the
    last document found to share a band with it. shared: the number of bands that these two documents share. Both arrays
    are int64 [size of the largest component]. best: the candidates, packed into int64 for sorting.
    """

    seen: np.ndarray
    shared: np.ndarray
    best: np.ndarray


class Earlier(NamedTuple):
    """The results of comparing the N documents of a block of a giant component with the blocks before it (see
    `giants/`). If the documents are not in such a block, all arrays are empty.

    words: uint64, the outcomes of comparisons with candidates in earlier blocks (`outcomes.py`). offsets: int64
    [N + 1], the index in `words` at which each document's outcomes start. retained: uint16 [N, bands], how many
    documents of earlier blocks are retained and share each band key, up to the number that is listed plus 1. high, low:
    uint64 [N], the two halves of each document's id. heads, ends: int64 [number of earlier blocks], scratch space.
    """

    words: np.ndarray
    offsets: np.ndarray
    retained: np.ndarray
    high: np.ndarray
    low: np.ndarray
    heads: np.ndarray
    ends: np.ndarray


def no_earlier() -> Earlier:
    """Return the value for documents that are not in a block."""
    words, places = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    return Earlier(words, places, np.zeros((0, 0), np.uint16), words, words, places, places)
