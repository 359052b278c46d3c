"""Adds up counts by name, such as the counters of task results, in time that grows with the number of counts alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


def added(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Return the sum of all counts by name, without names whose sum is zero.

    `sum` would copy the intermediate result for each Counter, so its time would grow with the number of Counters times
    the number of names.

    >>> added([{"a": 1, "b": 2}, {"b": 3, "c": 0}])
    Counter({'b': 5, 'a': 1})
    """
    found = Counter[str]()
    for one in counts:
        found.update(one)
    return +found
