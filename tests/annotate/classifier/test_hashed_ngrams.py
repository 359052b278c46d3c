"""Features are words and pairs of words, and scores are those of a loop over them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.annotate.classifier.hashed_ngrams import count_features, list_features, score
from datakit.text.string_buffers import string_buffers
from datakit.text.unicode_words import character_table
from tests.support.annotate.linear_oracle import buckets, probability

BITS, BIAS = 10, -0.25
WEIGHTS = np.random.default_rng(0).normal(size=1 << BITS).astype(np.float32)
TEXTS = st.lists(
    st.one_of(st.text(max_size=30), st.text("aB é日本1 \n\0😀", max_size=30), st.just("one two " * 3000)), max_size=5
)


def scored(texts: list[str]) -> list[float | None]:
    data, offsets = string_buffers(pa.array(texts, pa.large_string()))
    scores, known = np.empty(len(texts), np.float32), np.empty(len(texts), bool)
    score(data, offsets, character_table(), BITS, WEIGHTS, BIAS, scores, known)
    return [float(one) if has else None for one, has in zip(scores, known, strict=True)]


def listed(texts: list[str]) -> list[list[int]]:
    data, offsets = string_buffers(pa.array(texts, pa.large_string()))
    totals = np.zeros(len(texts), np.int64)
    count_features(data, offsets, character_table(), totals)
    ends = np.concatenate([[0], np.cumsum(totals)])
    found = np.empty(ends[-1], np.uint32)
    list_features(data, offsets, character_table(), BITS, ends, found)
    return [found[ends[i] : ends[i + 1]].tolist() for i in range(len(texts))]


@settings(max_examples=60, deadline=None)
@given(texts=TEXTS)
def test_features_are_words_and_pairs(texts: list[str]) -> None:
    assert listed(texts) == [buckets(text, BITS) for text in texts]


@settings(max_examples=60, deadline=None)
@given(texts=TEXTS)
def test_scores_are_those_of_a_loop(texts: list[str]) -> None:
    for text, found in zip(texts, scored(texts), strict=True):
        expected = probability(text, BITS, WEIGHTS, BIAS)
        assert found == (None if expected is None else pytest.approx(expected, rel=1e-5))


@settings(max_examples=30, deadline=None)
@given(texts=TEXTS)
def test_a_score_depends_on_its_document_only(texts: list[str]) -> None:
    assert scored(texts) == [scored([text])[0] for text in texts]


@pytest.mark.parametrize(
    "text", ["a" * 1_000_000, "a\n" * 500_000, "\n" * 1_000_000, "\0" * 1_000_000, "🙂" * 250_000, "日" * 300_000]
)
def test_hostile_documents_are_scored(text: str) -> None:
    (found,) = scored([text])
    assert found is None or 0 <= found <= 1
