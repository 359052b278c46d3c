"""Tests of passing prebuilt tokens through."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.cache.contract import Contract, Special, frame
from datakit.errors import CorruptError, TokenizerError
from datakit.tokenize.prebuilt import framed_mask, prebuilt_tokens, unframed

CONTRACT = Contract("", "", 100, None, Special("<end>", 0), [])


def test_ids_beyond_vocabulary_and_nulls_are_refused() -> None:
    assert prebuilt_tokens(pa.array([[1], [], [99]]), CONTRACT, "here")[0].tolist() == [1, 99]
    for column in ([[1, 100]], [[-1]]):
        with pytest.raises(TokenizerError, match="made with another tokenizer"):
            prebuilt_tokens(pa.array(column), CONTRACT, "here")
    for column in (pa.array([[1, None]]), pa.array([[1], None]), pa.array([[1.0]]), pa.array(["1"])):
        with pytest.raises(CorruptError):
            prebuilt_tokens(column, CONTRACT, "here")


@given(
    documents=st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1)), max_size=4), max_size=6),
    ends=st.sampled_from([(None, None), (None, 0), (1, None), (1, 0), (0, 0)]),
)
def test_tokens_that_are_already_there_keep_their_mask(
    documents: list[list[tuple[int, int]]], ends: tuple[int | None, int | None]
) -> None:
    bos, eos = (None if end is None else Special(f"<{end}>", end) for end in ends)
    contract = Contract("", "", 100, bos, eos, [])
    expected: list[list[tuple[int, int]]] = []
    for document in documents:
        has_end = eos is not None and document[-1:] and document[-1][0] == eos.id
        inner = document[:-1] if has_end else document
        has_begin = bos is not None and inner[:1] and inner[0][0] == bos.id
        inner = inner[1:] if has_begin else inner
        begin = [] if bos is None else [document[0] if has_begin else (bos.id, 0)]
        before = [*begin, *inner]
        end = [] if eos is None else [document[-1] if has_end else (eos.id, inner[-1][1] if inner else 0)]
        expected.append([*before, *end])
    ids = np.array([token for document in documents for token, _ in document], np.uint32)
    mask = np.array([target for document in documents for _, target in document], np.uint8)
    lengths = np.array([len(document) for document in documents], np.int64)
    kept, left = unframed(ids, lengths, contract)
    tokens, framed = frame(ids[kept], left, contract)
    assert framed.tolist() == [len(document) for document in expected]
    flat = [pair for document in expected for pair in document]
    found = framed_mask(mask, ids, lengths, contract)
    assert list(zip(tokens.tolist(), found.tolist(), strict=True)) == flat


def test_document_whose_only_target_is_its_end_keeps_that_target() -> None:
    ids, mask, lengths = np.array([5, 6, 0], np.uint32), np.array([0, 0, 1], np.uint8), np.array([3])
    assert framed_mask(mask, ids, lengths, CONTRACT).tolist() == [0, 0, 1]
