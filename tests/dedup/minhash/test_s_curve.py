"""The S-curve is the probability that any band agrees."""

from __future__ import annotations

import pytest

from datakit.dedup.minhash.s_curve import candidate_probability


def test_probability_is_that_of_any_band() -> None:
    assert candidate_probability(0.8, 14, 8) == pytest.approx(1 - (1 - 0.8**8) ** 14)
    assert candidate_probability(1.0, 14, 8) == 1.0
    assert candidate_probability(0.0, 14, 8) == 0.0
