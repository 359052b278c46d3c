"""Tests of passing prebuilt tokens through."""

from __future__ import annotations

import pyarrow as pa
import pytest

from datakit.cache.contract import Contract, Special
from datakit.errors import CorruptError, TokenizerError
from datakit.tokenize.prebuilt import prebuilt_tokens

CONTRACT = Contract("", "", 100, None, Special("<end>", 0), [])


def test_ids_beyond_vocabulary_and_nulls_are_refused() -> None:
    assert prebuilt_tokens(pa.array([[1], [], [99]]), CONTRACT, "here")[0].tolist() == [1, 99]
    for column in ([[1, 100]], [[-1]]):
        with pytest.raises(TokenizerError, match="made with another tokenizer"):
            prebuilt_tokens(pa.array(column), CONTRACT, "here")
    for column in (pa.array([[1, None]]), pa.array([[1], None]), pa.array([[1.0]]), pa.array(["1"])):
        with pytest.raises(CorruptError):
            prebuilt_tokens(column, CONTRACT, "here")
