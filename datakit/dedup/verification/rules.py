"""Defines the rules that the verification kernels apply (threshold, measure, comparison limits) and the counters that
the kernels report. The defaults of these rules are in `dedup/stage.py`.
"""

from __future__ import annotations

from typing import NamedTuple

MEASURES = ("jaccard", "containment")
# The index lists up to LISTED_PER_COMPARISON * `Rules.most` retained documents for each band key.
LISTED_PER_COMPARISON = 4
# candidates: pairs of a document and a retained document that share a band key. ruled_out: candidates excluded by their
# numbers of shingles alone. comparisons: candidates compared shingle by shingle. rejected: candidates that turned out
# to be below the threshold. capped: documents retained before all their candidates were compared. crowded: retained
# documents that share a band key with more retained documents than are listed for it; those not listed may not have
# become candidates.
COUNTED: tuple[str, ...] = ("candidates", "ruled_out", "comparisons", "rejected", "capped", "crowded")


class Rules(NamedTuple):
    """The rules by which documents are compared.

    measure: the index of the measure in MEASURES; "containment" is the share of a document's shingles that the retained
    document contains. most: the maximum number of retained documents that one document is compared with.
    """

    threshold: float
    measure: int
    most: int

    @property
    def listed(self) -> int:
        """The maximum number of retained documents that are listed for a band key."""
        return LISTED_PER_COMPARISON * self.most
