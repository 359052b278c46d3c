"""Tests of the places where texts may be cut."""

from __future__ import annotations

import json
import sys
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.cache.contract import PARTS, WHOLE
from datakit.tokenize.encoders.safe_cuts import find_splitter
from datakit.tokenize.encoders.tokenizer import parse
from datakit.tokenize.make_contract import make_contract
from tests.support.caches import trained
from tests.support.tokens.bpe_tokenizers import TEXTS, tokenizer_of


@settings(max_examples=60)
@given(text=TEXTS.filter(bool), size=st.integers(1, 50))
def test_parts_cover_a_text_and_are_small(text: str, size: int) -> None:
    splitter, _ = find_splitter(tokenizer_of("gpt2", None).definition)
    assert splitter is not None
    data = np.frombuffer(text.encode(), np.uint8)
    points = splitter.points(data)
    cuts = list(splitter.cuts(data, size))
    assert [start for start, _ in cuts] == [0, *(stop for _, stop in cuts[:-1])]
    assert cuts[-1][1] == len(data)
    assert {stop for _, stop in cuts[:-1]} <= set(points.tolist())
    for start, stop in cuts:
        inner = points[(points > start) & (points < stop)]
        assert stop - start <= size or not (inner <= start + size).any()


def test_no_character_before_a_cut_normalizes_to_white_space() -> None:
    """The table knows a character beyond ASCII only by its last byte."""
    splitter, _ = find_splitter(tokenizer_of("gpt2", None).definition)
    assert splitter is not None
    for point in (code for code in range(0x80, sys.maxunicode + 1) if not 0xD800 <= code < 0xE000):
        if chr(point).isspace():
            assert not splitter.safe[chr(point).encode()[-1], ord(" ")], hex(point)
        elif splitter.safe[chr(point).encode()[-1], ord(" ")]:
            assert not any(unicodedata.normalize(form, chr(point))[-1:].isspace() for form in ("NFKC", "NFKD")), hex(
                point
            )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "normalizer"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "not byte-level"),
        (
            {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
            "space before each",
        ),
        (
            {
                "pre_tokenizer": {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "trim_offsets": True,
                    "use_regex": False,
                }
            },
            "borders are known",
        ),
    ],
)
def test_unknown_tokenizers_are_not_split(change: dict[str, Any], reason: str) -> None:
    definition = {**json.loads(trained()), **change}
    made = parse(json.dumps(definition).encode(), "here")
    contract = make_contract(made, made.encoder("tokenizers"), "eos", None, None)
    assert contract.long_texts.startswith(f"{WHOLE}: ")
    assert reason in contract.long_texts
    ordinary = parse(trained(), "here")
    assert make_contract(ordinary, ordinary.encoder(), "eos", None, None).long_texts == PARTS
