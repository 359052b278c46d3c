"""Quantiles are exact if few numbers were added, and otherwise within the stated error; their order plays no part."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.pipeline.attributes import quantiles
from datakit.pipeline.attributes.quantiles import ERROR, Quantiles

NUMBERS = st.lists(
    st.one_of(
        st.floats(allow_nan=False, allow_infinity=False, min_value=-1e200, max_value=1e200, allow_subnormal=False),
        st.integers(-1000, 1000).map(float),
    ),
    min_size=1, max_size=60,
)  # fmt: skip


def nearest_rank(values: list[float], share: float) -> float:
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def added(values: list[float], batch: int) -> Quantiles:
    found = Quantiles()
    for start in range(0, len(values), batch):
        found.add(np.array(values[start : start + batch]))
    return found


@given(NUMBERS, st.floats(0, 1), st.integers(1, 7))
def test_few_numbers_have_exact_quantiles(values: list[float], share: float, batch: int) -> None:
    found = added(values, batch)
    assert found.exact
    assert found.at(share) == nearest_rank(values, share)


@given(values=NUMBERS, share=st.floats(0, 1), batch=st.integers(1, 7))
def test_many_numbers_have_quantiles_within_the_stated_error(values: list[float], share: float, batch: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "EXACT", 3)
        found, reversed_ = added(values, batch), added(values[::-1], 1)
        assert found.exact == (len(values) <= 3)
        exact = nearest_rank(values, share)
        assert found.at(share) == pytest.approx(exact, rel=ERROR, abs=1e-299)
        assert found.at(share) == reversed_.at(share)
        assert (found.at(0), found.at(1)) == (min(values), max(values))


def test_memory_is_bounded() -> None:
    """Beyond EXACT numbers, no number is kept, and there are 2**BITS counts."""
    found = Quantiles()
    for _ in range(3):
        found.add(np.linspace(0, 1, quantiles.EXACT // 2 + 1))
    assert not found.exact and found._kept == []
    assert found._counts is not None and found._counts.nbytes == 8 << quantiles.BITS
