"""Tests of the tokens and masks around documents, as the contract says."""

from __future__ import annotations

import numpy as np
import pytest

from datakit.cache.contract import Contract, Special, check_ends, frame, frame_mask
from datakit.errors import CorruptError, TokenizerError
from tests.support.caches import contract_of, trained

CONTRACT = Contract("", "", 100, None, Special("<end>", 0), [])


def test_documents_without_end_token_are_refused() -> None:
    contract = contract_of(trained())
    tokens, lengths = np.array([7, 0, 9, 9, 0], np.uint16), np.array([2, 3])
    check_ends(tokens, lengths, contract, "shard")
    with pytest.raises(CorruptError, match=r"does not end with '<\|endoftext\|>'"):
        check_ends(tokens, np.array([3, 2]), contract, "shard")
    with pytest.raises(CorruptError, match="add up to 4"):
        check_ends(tokens, np.array([2, 2]), contract, "shard")
    with pytest.raises(CorruptError, match="5 tokens, but the documents' lengths add up to 0"):
        check_ends(tokens, np.zeros(0, np.int64), contract, "shard")
    with pytest.raises(TokenizerError, match="id 400"):
        frame(np.array([400], np.uint32), np.array([1]), contract)


def test_end_token_takes_mask_of_token_before_it() -> None:
    mask, lengths = np.array([0, 1, 1, 0], np.uint8), np.array([2, 0, 2])
    assert frame_mask(mask, lengths, CONTRACT).tolist() == [0, 1, 1, 0, 1, 0, 0]
    both = Contract("", "", 100, Special("<begin>", 1), Special("<end>", 0), [])
    assert frame_mask(mask, lengths, both).tolist() == [0, 0, 1, 1, 0, 0, 0, 1, 0, 0]
