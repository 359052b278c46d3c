"""Defines how the outcomes of a document's comparisons with candidates in earlier blocks are stored, and reads them, in
numba kernels, in the order of comparison.

An outcome takes three words (uint64): `order * 4 + kind`, and the two halves of the candidate's id. `order` is the
number of bands that the two documents do not share, so outcomes sorted by these words, without the kind, are in the
order of comparison. A HIT takes three more words: the candidate's row, the number of shingles that both documents have,
and the number of the candidate's shingles. A document's outcomes are a concatenation of sequences in this order, at
most one for each earlier block.
"""

from __future__ import annotations

import numpy as np

from datakit.dedup.verification import arrays
from datakit.dedup.verification.arrays import NONE, Earlier
from datakit.text.numba_cache import Decorator, cached_njit

# the kinds of outcomes; UNCOMPARED: the limit on comparisons was reached in the candidate's block
RULED_OUT, REJECTED, HIT, UNCOMPARED = range(4)
WORDS, HIT_WORDS = 3, 6
_KIND, _KIND_BITS = np.uint64(3), np.uint64(2)
kernel: Decorator = cached_njit(arrays)


@kernel
def kind_of(word: np.uint64) -> int:
    """Return the kind in the first word of an outcome."""
    return int(word & _KIND)


@kernel
def order_of(word: np.uint64) -> int:
    """Return the order in the first word of an outcome."""
    return int(word >> _KIND_BITS)


@kernel
def precedes(order: int, high: np.uint64, low: np.uint64, words: np.ndarray, at: int) -> bool:
    """Return True if a candidate is compared before the one whose outcome is at `at`."""
    there = order_of(words[at])
    if order != there:
        return order < there
    if high != words[at + 1]:
        return high < words[at + 1]
    return low < words[at + 2]


@kernel
def begin(document: int, earlier: Earlier) -> int:
    """Find the sequences of a document's outcomes, put their bounds into `earlier.heads` and `earlier.ends`, and return
    their number.
    """
    if not len(earlier.offsets):
        return 0
    words, at, stop = earlier.words, earlier.offsets[document], earlier.offsets[document + 1]
    count, last = 0, NONE
    while at < stop:
        if last == NONE or precedes(order_of(words[at]), words[at + 1], words[at + 2], words, last):
            earlier.heads[count] = at
            count += 1
        last = at
        at += HIT_WORDS if kind_of(words[at]) == HIT else WORDS
        earlier.ends[count - 1] = at
    return count


@kernel
def first(earlier: Earlier, sequences: int) -> int:
    """Return the sequence that has the next outcome in the order of comparison, or NONE if no outcome is left."""
    found, words = NONE, earlier.words
    for i in range(sequences):
        at = earlier.heads[i]
        if at < earlier.ends[i] and (
            found == NONE or precedes(order_of(words[at]), words[at + 1], words[at + 2], words, earlier.heads[found])
        ):
            found = i
    return found
