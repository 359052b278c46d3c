"""Shingle sets are those of a plain Python implementation."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.text import shingles
from tests.support.dedup import dedup_oracle as oracle

ALPHABET = "aAbZ9_ éÉßΣσςЖж" + " .,-\n\t" + "漢字かなカナーไทย" + "😀\u0301\u00a0한अ\u0130"
TEXTS = st.text(st.sampled_from(ALPHABET), max_size=200)


def column(*texts: str) -> pa.Array:
    """Return texts as a normalized file stores them."""
    return pa.array(list(texts), pa.large_string())


def sets_of(texts: pa.Array, ngram: int = 5) -> list[np.ndarray]:
    """Return each document's shingle hashes."""
    offsets, values = shingles.shingle_sets(texts, ngram)
    return [values[offsets[i] : offsets[i + 1]] for i in range(len(texts))]


@given(st.lists(TEXTS, max_size=3), st.integers(1, 6))
@settings(max_examples=30)
def test_shingle_sets_match_plain_python(texts: list[str], ngram: int) -> None:
    for text, values in zip(texts, sets_of(column(*texts), ngram), strict=True):
        expected = sorted(oracle.shingle_hash(shingle) for shingle in oracle.shingles(text, ngram))
        assert values.tolist() == expected


@pytest.mark.parametrize("words", [2043, 2044, 2047, 2048, 2049, 2052, 4096, 10_000])
def test_block_boundaries_lose_no_shingle(words: int) -> None:
    text = " ".join(f"w{i % 3000}" for i in range(words)) + "é"
    (values,) = sets_of(column(text))
    assert values.tolist() == sorted({oracle.shingle_hash(shingle) for shingle in oracle.shingles(text)})


def test_case_and_punctuation_do_not_matter() -> None:
    first, second, third = sets_of(
        column("The cat -- sat, on THE mat!", "the cat sat on the mat", "the cats at on the mat")
    )
    assert np.array_equal(first, second)
    assert not np.intersect1d(second, third).size


def test_invalid_utf8_separates_words() -> None:
    for broken in (b"a b c d e \xe6\xbc", b"a b c d e\xff", b"a b c d e \xf0\x9f", b"\x80\x80\x80 a b c d e", b"\xc3"):
        offsets = np.array([0, len(broken)], np.int64)
        array = pa.LargeStringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(broken))
        (values,) = sets_of(array)
        assert len(values) <= 1 + 5 * broken.count(b"\x80")
