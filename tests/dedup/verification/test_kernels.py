"""Verification follows its rules exactly, and its work is bounded for components of any size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.dedup.verification.arrays import NONE, Documents
from datakit.dedup.verification.comparisons import common
from datakit.dedup.verification.rules import Rules
from datakit.dedup.verification.run_kernels import verify
from tests.support.dedup.verification_oracle import BANDS, Document, by_the_rules


def arrange(components: list[list[Document]]) -> Documents:
    """Return the documents for the kernel; those of each component are in survivor order."""
    every = [document for component in components for document in component]
    ids = np.array([document[0] for document in every], np.int64)
    by_rank = np.argsort(ids)
    rank = np.empty(len(ids), np.int64)
    rank[by_rank] = np.arange(len(ids))
    return Documents(
        starts=np.cumsum([0, *map(len, components)]),
        offsets=np.cumsum([0, *(len(document[1]) for document in every)]),
        shingles=np.array([value for document in every for value in sorted(document[1])], np.uint64),
        keys=np.array([document[2] for document in every], np.uint64).reshape(-1, BANDS),
        rank=rank,
        by_rank=by_rank,
    )


@st.composite
def some_components(draw: st.DrawFn) -> list[list[Document]]:
    """Draw small documents with few shingles and keys, to provoke ties, caps and crowded keys."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    ids = draw(st.permutations(range(sum(sizes))))
    components, used = [], 0
    for number, size in enumerate(sizes):
        component = []
        for _ in range(size):
            values = draw(st.frozensets(st.integers(0, 9), min_size=1, max_size=8))
            keys = tuple(draw(st.integers(0, 2)) * BANDS + band + 1000 * number for band in range(BANDS))
            component.append((ids[used], values, keys))
            used += 1
        components.append(component)
    return components


@given(
    components=some_components(),
    threshold=st.sampled_from([0.3, 0.5, 0.8, 1.0]),
    measure=st.sampled_from([0, 1]),
    most=st.integers(1, 3),
)
@settings(max_examples=80)
def test_verdicts_follow_the_rules(
    components: list[list[Document]],
    threshold: float,
    measure: int,
    most: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    rules = Rules(threshold, measure, most)
    representative, jaccard, counts = verify(arrange(components), rules, tmp_path_factory.mktemp("scratch"))
    expected, similarities, expected_counts = by_the_rules(components, rules)
    assert representative.tolist() == expected
    assert jaccard.tolist() == similarities
    assert counts == expected_counts
    removed = representative != NONE
    assert (representative[representative[removed]] == NONE).all(), "a representative is retained"
    assert counts["comparisons"] == counts["rejected"] + removed.sum()


@given(st.sets(st.integers(0, 400), max_size=300), st.sets(st.integers(0, 400), max_size=300), st.floats(0, 300))
@settings(max_examples=60)
def test_intersections_are_exact_where_the_threshold_is_reachable(one: set[int], other: set[int], least: float) -> None:
    values = np.array(sorted(one) + sorted(other), np.uint64)
    shared = common(values, 0, len(one), len(one), len(values), least)
    truth = len(one & other)
    assert shared == truth if truth >= least else shared <= truth


def test_work_in_giant_components_is_bounded(tmp_path: Path) -> None:
    """50,000 documents share a band key and little else; 1,000 of them are copies that share rare keys."""
    count, copies, most = 50_000, 1_000, 8
    generator = np.random.default_rng(2)
    own = np.sort(generator.integers(1, 2**63, (count, 40), dtype=np.uint64), axis=1)
    own[:, 0] = 0  # the template's own shingle
    keys = generator.integers(1, 2**63, (count, BANDS), dtype=np.uint64)
    own[-copies:], keys[-copies:] = own[:copies], keys[:copies]
    keys[:, 0] = 7
    documents = Documents(
        starts=np.array([0, count]),
        offsets=np.arange(count + 1) * 40,
        shingles=own.reshape(-1),
        keys=keys,
        rank=np.arange(count),
        by_rank=np.arange(count),
    )
    rules = Rules(0.8, 0, most)
    representative, jaccard, counts = verify(documents, rules, tmp_path)
    assert representative[-copies:].tolist() == list(range(copies))
    assert (jaccard[-copies:] == 1.0).all()
    assert (representative[:-copies] == NONE).all()
    assert counts["comparisons"] <= most * count
    assert counts["candidates"] <= BANDS * rules.listed * count
    assert counts["capped"] == count - copies - most - 1, "all documents with more candidates than comparisons"
    assert counts["crowded"] == count - copies - rules.listed - 1
    assert not list(tmp_path.iterdir()), "mapped files are unlinked"
