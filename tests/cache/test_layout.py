"""Tests of the cache's array metadata and its histogram of lengths."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datakit.cache.layout import ArrayForm, SourceSums, length_histogram, most_frequent


@given(tokens=st.integers(1, 2000), chunk=st.integers(1, 300))
def test_chunks_are_equal_with_little_padding(tokens: int, chunk: int) -> None:
    metadata = ArrayForm("uint16", chunk, []).metadata(tokens)
    inner = metadata["codecs"][0]["configuration"]["chunk_shape"][0]
    outer = metadata["chunk_grid"]["configuration"]["chunk_shape"][0]
    assert outer % inner == 0
    assert inner <= chunk
    assert tokens <= outer < tokens + outer // inner


@given(st.lists(st.integers(0, 5000), max_size=50))
def test_histogram_counts_every_document_once(lengths: list[int]) -> None:
    histogram = length_histogram(np.array(lengths, np.int64))
    for power, count in histogram.items():
        assert count == sum(int(power) // 2 <= length < int(power) for length in lengths)
    assert sum(histogram.values()) == len(lengths)


@given(st.lists(st.integers(0, 6), max_size=40), st.integers(1, 10))
def test_most_frequent_tokens_are_in_order_and_occur(counts: list[int], number: int) -> None:
    every = sorted((-count, token) for token, count in enumerate(counts) if count)
    expected = [(str(token), -count) for count, token in every[:number]]
    assert list(most_frequent(np.array(counts, np.int64), number).items()) == expected


def test_totals_of_a_source_are_printed_without_frequent_tokens() -> None:
    sums = SourceSums(1, 20, 300, 1000, frequent=[(7, 12)])
    assert (
        repr({"web": sums}) == "{'web': SourceSums(shards=1, documents=20, tokens=300, text_bytes=1000, targets=None)}"
    )
