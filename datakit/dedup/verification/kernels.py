"""Decides, in numba kernels, which documents of a component are duplicates: compares each document, shingle by shingle,
with candidates among the documents retained so far.

Locality-sensitive hashing only proposes pairs. Documents are processed in the order given by `survivors.py`. Each
document is compared, by the exact measure, with up to `most` retained documents that share a band key with it:
candidates that share more bands come first, and ties are broken by id. The first candidate at or above the threshold
makes the document a duplicate *of that candidate*, which is never removed later. If there is no such candidate, the
document is retained. So no document is removed without a direct comparison with a document that is kept.

The work per document is bounded, however large its component is. For each band key, the index lists only the first
`listed` retained documents that have the key. A key shared by more documents usually comes from boilerplate, and near
duplicates also share rarer keys. Each document needs at most `bands * listed` look-ups and `most` intersections;
documents that are retained after one of these limits was reached are counted.

The documents may be a block of a giant component. Then the outcomes of the comparisons with candidates in earlier
blocks are known (`Earlier`), and the rule is replayed with them: each is used when it is the candidate's turn.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

import numpy as np

from datakit.dedup.verification import arrays, candidates, comparisons, outcomes, rules
from datakit.dedup.verification.arrays import NONE, Documents, Earlier, Index, Proposals
from datakit.dedup.verification.candidates import RANK, RANK_BITS, component_of, propose, retain
from datakit.dedup.verification.comparisons import compare, possible, size_of
from datakit.dedup.verification.outcomes import HIT, RULED_OUT, begin, first, kind_of, precedes
from datakit.dedup.verification.rules import Rules
from datakit.text.numba_cache import Decorator, cached_njit

CANDIDATES, RULED, COMPARISONS, REJECTED, CAPPED, CROWDED = range(6)  # indices in COUNTED
KNOWN_HIT = -2  # minus the index in `Earlier.words` of a hit: the representative of a duplicate of an earlier block
kernel: Decorator = cached_njit(arrays, candidates, comparisons, outcomes, rules)


@kernel
def _judge(
    document: int,
    count: int,
    best: np.ndarray,
    documents: Documents,
    earlier: Earlier,
    rules: Rules,
    counts: np.ndarray,
) -> tuple[int, float]:
    """Return the first candidate that reaches the threshold, and its Jaccard similarity; else (NONE, 0). The candidates
    are those that `propose` found, and those in earlier blocks.
    """
    size, compared, i, other, kind, at = size_of(document, documents), 0, 0, NONE, NONE, NONE
    sequences = begin(document, earlier)
    while True:
        if i < count:
            other = int(documents.by_rank[best[i] & RANK])
        known = first(earlier, sequences)
        if known != NONE:
            at = int(earlier.heads[known])
            if i < count and precedes(best[i] >> RANK_BITS, earlier.high[other], earlier.low[other], earlier.words, at):
                known = NONE
        if known != NONE:
            kind = kind_of(earlier.words[at])
            earlier.heads[known] += outcomes.WORDS
            passed = kind != RULED_OUT
        elif i < count:
            i += 1
            passed = possible(size, size_of(other, documents), rules)
        else:
            return NONE, 0.0
        if not passed:
            counts[RULED] += 1
            continue
        if compared == rules.most:
            counts[CAPPED] += 1
            return NONE, 0.0
        compared += 1
        counts[COMPARISONS] += 1
        if known == NONE:
            both, hit = compare(document, other, documents, rules)
            if hit:
                return other, both / (size + size_of(other, documents) - both)
        elif kind == HIT:
            both, other_size = int(earlier.words[at + 4]), int(earlier.words[at + 5])
            return KNOWN_HIT - at, both / (size + other_size - both)
        counts[REJECTED] += 1


@kernel
def verify_documents(
    first: int,
    last: int,
    number: int,
    documents: Documents,
    earlier: Earlier,
    rules: Rules,
    listed: int,
    index: Index,
    proposals: Proposals,
    representative: np.ndarray,
    jaccard: np.ndarray,
    counts: np.ndarray,
) -> int:
    """Judge the documents [first, last). `number` is the component of document `first`, or the component before it if
    the document begins a new one. All earlier documents must have been judged with the same index. Return the component
    of the last document.
    """
    component = component_of(number, documents)
    for document in range(first, last):
        if document == documents.starts[component.number + 1]:
            component = component_of(component.number + 1, documents)
        count, crowded = propose(document, document, component, documents, index, proposals, listed, earlier)
        counts[CANDIDATES] += count
        other, similarity = _judge(document, count, proposals.best, documents, earlier, rules, counts)
        representative[document], jaccard[document] = other, similarity
        if other == NONE:
            counts[CROWDED] += crowded
            retain(document, component, documents.keys, index, listed, earlier)
    return component.number


@kernel
def copy_lists(
    values: np.ndarray, offsets: np.ndarray, target: np.ndarray, target_offsets: np.ndarray, places: np.ndarray
) -> None:
    """Copy each list i in `values` to `target`, where it becomes list places[i], unless places[i] is negative."""
    for i in range(len(places)):
        if places[i] < 0:
            continue
        begin = target_offsets[places[i]]
        for j in range(offsets[i + 1] - offsets[i]):
            target[begin + j] = values[offsets[i] + j]
