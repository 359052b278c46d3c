"""Compares, in numba kernels, the documents of a block with the documents that are retained in an earlier block.

A probe iterates over the candidates in the earlier block as the sequential rule would if there were no others: to the
first hit, to the candidate at which the limit on comparisons is reached, or to the end. In the order of all candidates,
those of one block keep their order, so the sequential rule never gets further among them.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.dedup.verification import arrays, candidates, comparisons, outcomes, rules
from datakit.dedup.verification.arrays import Documents, Earlier, Index, Proposals
from datakit.dedup.verification.candidates import RANK, RANK_BITS, component_of, propose, retain, slot_of
from datakit.dedup.verification.comparisons import compare, possible, size_of
from datakit.dedup.verification.outcomes import HIT, HIT_WORDS, REJECTED, RULED_OUT, UNCOMPARED, WORDS
from datakit.dedup.verification.rules import Rules
from datakit.text.numba_cache import Decorator, cached_njit

kernel: Decorator = cached_njit(arrays, candidates, comparisons, outcomes, rules)


class Names(NamedTuple):
    """The rows and the two halves of the ids of the retained documents, uint64 [R]."""

    row: np.ndarray
    high: np.ndarray
    low: np.ndarray


class Answers(NamedTuple):
    """Space for the answers about up to M documents. words: uint64, their outcomes (`outcomes.py`). ends: int64 [M],
    the index in `words` at which each document's outcomes end. retained: uint16 [M, bands], the number of retained
    documents with each band key, up to the number that is listed plus 1.
    """

    words: np.ndarray
    ends: np.ndarray
    retained: np.ndarray


@kernel
def list_retained(documents: Documents, earlier: Earlier, listed: int, index: Index) -> None:
    """Add the retained documents to an empty index, as they were added when their block was settled. earlier: how many
    documents of still earlier blocks are retained.
    """
    component = component_of(0, documents)
    for document in range(documents.starts[1]):
        retain(document, component, documents.keys, index, listed, earlier)


@kernel
def _compare_all(
    document: int, count: int, at: int, best: np.ndarray, documents: Documents, names: Names, rules: Rules,
    words: np.ndarray,
) -> int:  # fmt: skip
    """Store the outcomes of a document's candidates at `at`, and return where they end."""
    size, compared = size_of(document, documents), 0
    for i in range(count):
        other = int(documents.by_rank[best[i] & RANK])
        both, kind, other_size = 0, RULED_OUT, size_of(other, documents)
        if possible(size, other_size, rules):
            kind = UNCOMPARED
            if compared < rules.most:
                both, hit = compare(document, other, documents, rules)
                compared, kind = compared + 1, HIT if hit else REJECTED
        words[at] = ((best[i] >> RANK_BITS) << 2) | kind
        words[at + 1], words[at + 2] = names.high[other], names.low[other]
        if kind == HIT:
            words[at + 3], words[at + 4], words[at + 5] = names.row[other], both, other_size
            return at + HIT_WORDS
        at += WORDS
        if kind == UNCOMPARED:
            return at
    return at


@kernel
def probe_documents(
    first: int,
    last: int,
    mark: int,
    documents: Documents,
    names: Names,
    nothing: Earlier,
    rules: Rules,
    listed: int,
    index: Index,
    proposals: Proposals,
    answers: Answers,
    counts: np.ndarray,
) -> int:
    """Answer for the documents [first, last), which follow the retained documents, until `answers.words` is full.
    Return the first document without an answer. mark: a number for document `first`; the numbers of all documents that
    are compared with the same retained documents must differ. counts: the number of candidates is added to its element.
    """
    component, space = component_of(0, documents), len(answers.words) - WORDS * len(proposals.best) - WORDS
    own, at = documents.starts[1], 0
    for document in range(first, last):
        if at > space:
            return document
        count, _ = propose(
            document, mark + document - first, component, documents, index, proposals, listed, nothing
        )  # fmt: skip
        for band in range(documents.keys.shape[1]):
            slot = slot_of(index, component, documents.keys[document, band])
            known = index.size[slot] if index.stamp[slot] == component.number else 0
            answers.retained[document - own, band] = min(known, listed + 1)
        counts[0] += count
        at = _compare_all(document, count, at, proposals.best, documents, names, rules, answers.words)
        answers.ends[document - own] = at
    return last
