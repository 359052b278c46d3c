"""Tests that documents encoded in parts have the ids of the whole."""

from __future__ import annotations

import functools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.tokenize.encoders.long_texts import PART_BYTES
from datakit.tokenize.encoders.tokenizer import Tokenizer, load
from tests.support.caches import load_tokenizer, trained
from tests.support.data import REAL_TOKENIZERS, need_data
from tests.support.tokens.bpe_tokenizers import KINDS, NORMALIZERS, TEXTS, tokenizer_of
from tests.support.tokens.tokenizer_kinds import KINDS as SMALL_KINDS
from tests.support.tokens.tokenizer_kinds import small_tokenizer


def check_parts(kind: str, special_strings: str, text: str, normalizer: str | None, sizes: tuple[int, int]) -> None:
    """Encode in tiny parts, words in tiny windows, views of a few characters: in place of PART_BYTES, WINDOW_BYTES,
    LOOK_CHARACTERS and PIECE_CHARACTERS.
    """
    part, window = sizes
    made = tokenizer_of(kind, normalizer)
    expected, _ = made.reference_encoder(special_strings).encode_batch([text])
    for encoder in {made.encoder("auto", special_strings), made.encoder("tokenizers", special_strings)}:
        parts = made.long_texts(encoder, special_strings, part).cutting
        assert parts.reason == ""
        parts.words.window, parts.words.look, parts.words.normalize_size = window, 40, 3
        assert parts.encode_text(text).tolist() == expected.tolist()


CASES = {
    "text": TEXTS,
    "normalizer": st.sampled_from(NORMALIZERS),
    "sizes": st.tuples(st.integers(1, 64), st.integers(8, 80)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("special_strings", ["keep", "text"])
@settings(max_examples=8)
@given(**CASES)
def test_parts_have_the_ids_of_the_whole(
    kind: str, special_strings: str, text: str, normalizer: str | None, sizes: tuple[int, int]
) -> None:
    check_parts(kind, special_strings, text, normalizer, sizes)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("special_strings", ["keep", "text"])
@settings(max_examples=300)
@given(**CASES)
def test_parts_of_many_texts_have_the_ids_of_the_whole(
    kind: str, special_strings: str, text: str, normalizer: str | None, sizes: tuple[int, int]
) -> None:
    check_parts(kind, special_strings, text, normalizer, sizes)


def test_tokenizer_file_without_added_tokens_is_split_like_any_other() -> None:
    definition = json.loads(trained(600))
    del definition["added_tokens"]
    made = load_tokenizer(json.dumps(definition).encode())
    parts = made.long_texts(made.encoder(), "keep", 16)
    assert parts.reason == ""
    text = "some words, 日本語日本語日本語 " * 20
    assert parts.encode_text(text).tolist() == made.reference_encoder().encode_batch([text])[0].tolist()


def test_token_inside_a_special_token_is_not_found_in_its_string() -> None:
    """The library skips the whole string of a special token that it treats as text."""
    made = tokenizer_of("gpt2", None)
    text = "漢<|sep|>漢"
    expected = made.reference_encoder("text").encode_batch([text])[0].tolist()
    assert made.long_texts(made.encoder("auto", "text"), "text", 2).encode_text(text).tolist() == expected


@pytest.mark.parametrize("kind", SMALL_KINDS)
@settings(max_examples=25)
@given(
    text=st.lists(TEXTS | st.sampled_from(["xyzzy", " xyzzy", "漢字", "字字", "12345"]), max_size=8).map("".join),
    sizes=st.tuples(st.integers(1, 64), st.integers(48, 90)),
)
def test_tokenizers_of_all_kinds_have_the_references_ids(kind: str, text: str, sizes: tuple[int, int]) -> None:
    """Both libraries, whole and in parts; kinds whose pieces are not known are never cut."""
    made = small_tokenizer(kind)
    expected = made.reference_encoder().encode_batch([text])[0].tolist()
    for encoder in (made.encoder("fastokens"), made.encoder("tokenizers")):
        assert encoder.encode_batch([text])[0].tolist() == expected
        parts = made.long_texts(encoder, "keep", sizes[0])
        assert (parts.splitter is None) == (kind not in ("llama", "ignore_merges")) == bool(parts.reason)
        if parts.splitter is not None:
            parts.words.window, parts.words.look, parts.words.normalize_size = sizes[1], 40, 3
        assert parts.encode_text(text).tolist() == expected


RUNS = ["a", " ", "\n", "1", "-", "漢", "\u0301", "e\u0301\u0323", "'s", "<|endoftext|>", "\u200d"]


@functools.cache
def real_tokenizer() -> Tokenizer:
    tokenizer = load(str(need_data() / "tokenizers" / REAL_TOKENIZERS["olmo-v1_5"]))
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *((text, PART_BYTES + 20_000) for text in ("a", " ", "漢", "e\u0301\u0323", "<|endoftext|>")),
        *(pytest.param(text, 1_000_000, marks=pytest.mark.soak) for text in RUNS),
    ],
)
def test_long_runs_have_the_ids_of_the_whole(text: str, size: int) -> None:
    tokenizer = real_tokenizer()
    whole = text * (size // len(text.encode()))
    found = tokenizer.long_texts(tokenizer.encoder()).encode_text(whole)
    expected, _ = tokenizer.encoder().encode_batch([whole])
    assert (found == expected).all()
