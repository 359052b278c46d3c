"""Rules of verification in the form the kernels take, and the kernels' counters; defaults are in `dedup/stage.py`."""

from __future__ import annotations

from typing import NamedTuple

MEASURES = ("jaccard", "containment")
LISTED_PER_COMPARISON = 4  # a document chooses the best among more candidates than it may be compared with
# candidates: pairs of a document and a retained one that share a band key. ruled_out: those excluded by their sizes
# alone. comparisons: those compared shingle by shingle. rejected: those compared and found below the threshold.
# capped: documents retained before all their candidates were compared. crowded: documents retained although one of
# their band keys is shared by more retained documents than the key lists.
COUNTED: tuple[str, ...] = ("candidates", "ruled_out", "comparisons", "rejected", "capped", "crowded")


class Rules(NamedTuple):
    """Rules of the comparison. measure: position in MEASURES; containment is that of the document in the retained one.

    most: the maximum number of retained documents that one document is compared with.
    """

    threshold: float
    measure: int
    most: int

    @property
    def listed(self) -> int:
        """The maximum number of retained documents that a band key lists."""
        return LISTED_PER_COMPARISON * self.most
