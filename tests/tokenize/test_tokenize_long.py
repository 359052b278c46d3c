"""A document may be of any length: encoded in parts, its ids are those of the whole, in linear time."""

from __future__ import annotations

import functools
import json
import sys
import unicodedata
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.cache.contract import PARTS, WHOLE
from datakit.tokenize.encoders.normalizing import normalized
from datakit.tokenize.encoders.safe_cuts import CL100K_KIND, GPT2, find_splitter
from datakit.tokenize.encoders.tokenizer import Tokenizer, load, parse
from datakit.tokenize.make_contract import make_contract
from tests.support.caches import trained
from tests.support.data import need_data

KINDS = ["gpt2", "gpt2 as expression", *(f"cl100k {number}" for number in range(len(CL100K_KIND)))]
NORMALIZERS = [None, "NFC", "NFD", "NFKC", "NFKD"]
ADDED = ["<|sep|>", "   ", "|x y|", "é ", "<n>"]
CHARACTERS = st.sampled_from([
    *"aBz19 .,!'-/_|<>\n\r\t\x1c\x85\u00a0\u3000²٣éß漢字。カ한\u0301\u0323\u3099\u200d\ufb01\uff1c\u00a8", "\U0001f469",
])  # fmt: skip
FRAGMENTS = st.sampled_from(
    ["'s", "'ll", "\r\n", "  ", "the ", "<|endoftext|>", "<|end", *ADDED, "e\u0301", "\u1100\u1161"]
)
RUNS = st.builds(lambda text, times: text * times, CHARACTERS | FRAGMENTS, st.integers(1, 60))
TEXTS = st.lists(RUNS | CHARACTERS | FRAGMENTS, max_size=50).map("".join)


@functools.cache
def tokenizer(kind: str, normalizer: str | None) -> Tokenizer:
    """A small byte-level BPE with this pre-tokenizer, and added tokens of every sort."""
    definition: dict[str, Any] = json.loads(trained(600))
    if kind != "gpt2":
        number = kind.removeprefix("cl100k ")
        expression = sorted(CL100K_KIND)[int(number)] if number.isdigit() else GPT2
        split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
        bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        definition["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, bytes_only]}
    definition["normalizer"] = normalizer and {"type": normalizer}
    plain = {"single_word": False, "lstrip": False, "rstrip": False}
    for number, content in enumerate(ADDED):
        flags = {**plain, "normalized": number % 2 == 1, "special": number == 0}
        definition["added_tokens"].append({"id": 600 + number, "content": content, **flags})
    made = parse(json.dumps(definition).encode(), "here")
    assert isinstance(made, Tokenizer)
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("special_strings", ["keep", "text"])
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, normalizer=st.sampled_from(NORMALIZERS), sizes=st.tuples(st.integers(1, 64), st.integers(8, 80)))
def test_the_ids_of_the_parts_are_the_ids_of_the_whole(
    kind: str, special_strings: str, text: str, normalizer: str | None, sizes: tuple[int, int]
) -> None:
    """Cut to shreds: parts of some bytes, words of some bytes by windows, views of some characters."""
    part, window = sizes
    made = tokenizer(kind, normalizer)
    expected, _ = made.reference_encoder(special_strings).encode_batch([text])
    for encoder in {made.encoder("auto", special_strings), made.encoder("tokenizers", special_strings)}:
        parts = made.long_texts(encoder, special_strings, part)
        assert parts.reason == ""
        parts.words.window, parts.words.look, parts.words.normalize_size = window, 40, 3
        assert parts.encode_text(text).tolist() == expected.tolist()


@settings(max_examples=100, deadline=None)
@given(text=TEXTS.filter(bool), size=st.integers(1, 50))
def test_parts_cover_a_text_and_are_small_where_they_can_be(text: str, size: int) -> None:
    splitter, _ = find_splitter(tokenizer("gpt2", None).definition)
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


def test_no_character_that_may_stand_before_a_cut_is_normalized_into_white_space() -> None:
    """The table says `character beyond ASCII | white space` by the character's last byte alone."""
    splitter, _ = find_splitter(tokenizer("gpt2", None).definition)
    assert splitter is not None
    for point in (code for code in range(0x80, sys.maxunicode + 1) if not 0xD800 <= code < 0xE000):
        if chr(point).isspace():
            assert not splitter.safe[chr(point).encode()[-1], ord(" ")], hex(point)
        elif splitter.safe[chr(point).encode()[-1], ord(" ")]:
            assert not any(unicodedata.normalize(form, chr(point))[-1:].isspace() for form in ("NFKC", "NFKD")), hex(
                point
            )


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])) | TEXTS, size=st.integers(1, 9))
def test_a_text_normalized_in_pieces_is_the_text_normalized(text: str, size: int) -> None:
    for form in NORMALIZERS[1:]:
        normalize = getattr(tokenizers.normalizers, form or "")().normalize_str
        assert normalized(text, normalize, size) == normalize(text)


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
def test_what_is_not_known_is_not_split_and_the_contract_says_why(change: dict[str, Any], reason: str) -> None:
    definition = {**json.loads(trained()), **change}
    made = parse(json.dumps(definition).encode(), "here")
    contract = make_contract(made, made.encoder("tokenizers"), "eos", None, None)
    assert contract.long_texts.startswith(f"{WHOLE}: ")
    assert reason in contract.long_texts
    ordinary = parse(trained(), "here")
    assert make_contract(ordinary, ordinary.encoder(), "eos", None, None).long_texts == PARTS


@pytest.mark.parametrize(
    "text", ["a", " ", "\n", "1", "-", "漢", "\u0301", "e\u0301\u0323", "'s", "<|endoftext|>", "\u200d"]
)
def test_a_megabyte_of_anything_gives_the_same_ids_in_parts(text: str) -> None:
    made = load(str(need_data() / "tokenizers" / "gpt-neox-olmo-dolma-v1_5.json"))
    assert isinstance(made, Tokenizer)
    parts = made.long_texts(made.encoder())
    whole = text * (1_000_000 // len(text.encode()))
    found = parts.encode_text(whole)
    expected, _ = made.encoder().encode_batch([whole])
    assert (found == expected).all()
