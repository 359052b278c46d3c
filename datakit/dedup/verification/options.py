"""The rule of verification as data: what it needs to know, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass

MEASURES = ("jaccard", "containment")
# Pairs of a document and a retained one that shares a band key; of those: ruled out by their sizes alone, compared
# shingle by shingle, of these below the threshold. Documents: retained with candidates left over; retained though a
# band key of theirs was shared by more retained documents than it lists.
COUNTED: tuple[str, ...] = ("candidates", "ruled_out", "comparisons", "rejected", "capped", "crowded")


@dataclass(frozen=True)
class Rules:
    """How to compare. measure: 0 Jaccard, 1 containment of the document in the retained one."""

    threshold: float
    measure: int
    most: int

    @property
    def listed(self) -> int:
        """How many retained documents a band key lists."""
        return 4 * self.most
