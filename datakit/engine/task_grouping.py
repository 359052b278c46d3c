"""How many outputs one task makes, where outputs are fixed and may be tiny.

An output (a partition) is settled by the data and never changes; how many of them one attempt works through is only a
matter of cost: a fork and two messages, some 10 ms, must stay small beside the work, and there must be enough tasks to
keep every slot busy to the end. So a task takes neighbours until it has about a thirty-second of the whole, at least
8 MiB and at most 64 MiB. Nothing that is written depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence

SHARE = 32
SMALLEST = 8 << 20
LARGEST = 64 << 20


def neighbours(sizes: Sequence[int]) -> list[range]:
    """Runs of indices, in order, each of about the target size or a single larger item.

    >>> neighbours([5 << 20, 5 << 20, 5 << 20, 100 << 20, 0])
    [range(0, 2), range(2, 3), range(3, 4), range(4, 5)]
    """
    target = min(max(sum(sizes) // SHARE, SMALLEST), LARGEST)
    groups: list[range] = []
    start = gathered = 0
    for index, size in enumerate(sizes):
        if index > start and (gathered >= target or gathered + size > LARGEST):
            groups.append(range(start, index))
            start, gathered = index, 0
        gathered += size
    if start < len(sizes):
        groups.append(range(start, len(sizes)))
    return groups
