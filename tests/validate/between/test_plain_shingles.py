"""Shingles computed with numpy are those of the compiled loops."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.text.shingles import shingle_sets
from datakit.validate.between.plain_shingles import SHORT, shingles_of

ALPHABET = st.sampled_from([*"aZß_9 .,\n-", "É", "漢", "字", "ก", "\u0301", "İ", "Σ", "\U0001f600", "ﬁ"])


def compiled(text: str, ngram: int) -> np.ndarray:
    return shingle_sets(pa.array([text], pa.large_string()), ngram)[1]


@given(st.text(ALPHABET, max_size=200), st.integers(1, 6))
def test_shingles_equal_those_of_dedup(text: str, ngram: int) -> None:
    assert np.array_equal(shingles_of(text, ngram), compiled(text, ngram))


@pytest.mark.parametrize("length", [SHORT - 1, SHORT, SHORT + 1, 5000])
def test_long_words_are_hashed_to_their_end(length: int) -> None:
    text = f"{'x' * length} y {'x' * length}z {'漢' * 9} end"
    assert np.array_equal(shingles_of(text, 2), compiled(text, 2))
