"""Names the counters of evaluation items: how many a set has, and how many of them are too short to be found.

They describe a set's files and no documents, so they are the same for all sources and partitions.
"""

from __future__ import annotations

ITEMS, ALL, TOO_SHORT = "evaluation_items/", "/all", "/too_short"  # a name: ITEMS, the set, and one of the others
