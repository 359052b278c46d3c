"""Counts of many partitions are added without copying the sum for each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from hypothesis import given
from hypothesis import strategies as st

from datakit.engine.counts import added

COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 5))


@given(st.lists(COUNTS, max_size=8))
def test_sums_are_those_of_counters(counts: list[dict[str, int]]) -> None:
    assert added(counts) == sum(map(Counter, counts), Counter())


class Watched(Mapping[str, int]):
    """A count of one name, which notes how often it is read."""

    reads = 0

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, name: str) -> int:
        Watched.reads += 1
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter([self._name])

    def __len__(self) -> int:
        return 1


def test_each_count_is_read_once() -> None:
    Watched.reads = 0
    assert added(Watched(str(number)) for number in range(500)).total() == 500
    assert Watched.reads == 500
