"""Groups neighboring outputs (partitions) into tasks of about 8 to 64 MiB, to keep the tasks' total overhead small.

The data alone determines the partitions; the grouping affects only the cost. The overhead of a task (a fork and two
messages, some 10 ms) must be small compared with the work, and enough tasks must remain to keep all slots busy. A task
therefore takes neighboring partitions up to a target size: 1/32 of all bytes, but at least 8 MiB and at most 64 MiB (or
less, for a stage whose tasks take long for each byte).
"""

from __future__ import annotations

from collections.abc import Sequence

SHARE = 32
SMALLEST = 8 << 20
LARGEST = 64 << 20


def neighbours(sizes: Sequence[int], largest: int = LARGEST) -> list[range]:
    """Split the indices of `sizes` into consecutive ranges. A range ends once it reaches the target size, or before an
    index whose size would make the range exceed `largest`.

    >>> neighbours([5 << 20, 5 << 20, 5 << 20, 100 << 20, 0])
    [range(0, 2), range(2, 3), range(3, 4), range(4, 5)]
    """
    target = min(max(sum(sizes) // SHARE, SMALLEST), largest)
    groups: list[range] = []
    start = gathered = 0
    for index, size in enumerate(sizes):
        if index > start and (gathered >= target or gathered + size > largest):
            groups.append(range(start, index))
            start, gathered = index, 0
        gathered += size
    if start < len(sizes):
        groups.append(range(start, len(sizes)))
    return groups
