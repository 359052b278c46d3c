"""Blocks are cuts of the survivor order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datakit.dedup import survivor_cuts
from datakit.dedup.survivor_cuts import blocks_of, sampled, splitters, survivor_words
from datakit.dedup.survivors import survivor_keys

PREFER = ("score:x", "longest", "source")
SCORES = st.sampled_from([0.0, -0.0, 1.5, -1.5, 5e-324, -5e-324, float("-inf"), float("inf")])
DOCUMENTS = st.lists(
    st.tuples(SCORES, st.integers(0, 2**62), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2**64 - 1)),
    min_size=1,
    max_size=30,
    unique_by=lambda one: one[3:],
)


@given(DOCUMENTS, st.integers(1, 9))
def test_blocks_follow_the_survivor_order(documents: list[tuple[float, int, int, int, int]], blocks: int) -> None:
    names = {"score:x": float, "length": np.int64, "source": np.int64, "high": np.uint64, "low": np.uint64}
    columns = {name: np.array(values, kind) for (name, kind), values in zip(names.items(), zip(*documents, strict=True),
                                                                              strict=True)}  # fmt: skip
    columns["component"] = np.zeros(len(documents), np.uint64)
    words = survivor_words(PREFER, columns)
    starts = splitters(words.T.tolist(), blocks)
    order = np.lexsort(survivor_keys(PREFER, columns)[::-1])
    found = blocks_of(words, starts)[order]
    assert (np.diff(found) >= 0).all()
    sizes = np.bincount(found, minlength=blocks)
    assert sizes.max() <= -(-len(documents) // blocks), "a complete sample gives blocks of equal size"


def test_a_sample_has_the_wanted_size_and_the_smallest_mixed_ids() -> None:
    high, low = np.random.default_rng(1).integers(0, 2**63, (2, 200_000), dtype=np.uint64)
    chosen = sampled(high, low, len(high))
    assert 0.9 < chosen.sum() / survivor_cuts.SAMPLES < 1.1
    assert sampled(high, low, 2 * len(high))[~chosen].sum() == 0
    assert sampled(high[:100], low[:100], 100).all()
    assert sampled(high[:100], low[:100], 0).all()
