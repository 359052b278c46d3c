"""Files that the libraries are known to encode differently are left to the reference, or refused if unclear."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from datakit.cache.reader import open_cache
from datakit.errors import TokenizerError
from datakit.tokenize.encoders.base import FastEncoder
from datakit.tokenize.encoders.disagreements import fast_refusal
from datakit.tokenize.encoders.tokenizer import Tokenizer, parse
from tests.support.caches import make_cache, trained
from tests.support.fuzz.tokenizer_files import FLAGS, Case, check

PLAIN = {"special": False, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}


def case(kind: str, unreachable: tuple[str, ...], text: str, ignore_merges: bool = False) -> Case:
    return Case(kind, (("t", "h"),), unreachable, ignore_merges, None, (), text, "keep", (1, 8, 40, 1))


def parsed(definition: dict[str, Any]) -> Tokenizer:
    made = parse(json.dumps(definition).encode(), "here")
    assert isinstance(made, Tokenizer)
    return made


@pytest.mark.parametrize("text", ["\n\n", "x\n\nx the", "  "])
def test_entry_of_unknown_characters_that_no_merge_reaches_is_left_to_the_reference(text: str, tmp_path: Path) -> None:
    """Found by the fuzzer: fastokens took the entry as a token, the reference its bytes."""
    one = case("gemma", ("\n\n",), text)
    check(one)
    made = parsed(one.definition)
    assert made.refusal.startswith(r"no merge leads to the entry '\n\n' of its vocabulary")
    assert made.encoder("auto").name == "tokenizers"
    with pytest.raises(TokenizerError, match=r"cannot be used for this tokenizer \(no merge leads"):
        made.encoder("fastokens")
    definition = {**one.definition, "added_tokens": [{**PLAIN, "special": True, "id": 0, "content": "<unk>"}]}
    written = make_cache(tmp_path, {"web": [text]}, json.dumps(definition).encode(), eos="<unk>")
    cache = open_cache(str(written))
    assert cache.contract.fallback == made.refusal
    expected = tokenizers.Tokenizer.from_str(json.dumps(definition)).encode(text, add_special_tokens=False).ids
    assert cache.read(0, cache.tokens).tolist() == [*expected, 0]


@pytest.mark.parametrize("kind", ["gemma", "byte_fallback"])
@pytest.mark.parametrize(("unreachable", "ignore_merges"), [(("the", "th", "<0x0A>"), False), (("\n\n", "123"), True)])
def test_other_entries_that_no_merge_reaches_keep_fastokens(
    kind: str, unreachable: tuple[str, ...], ignore_merges: bool
) -> None:
    for text in (*unreachable, "x\n\nx the 123", "<0x0A>\n"):
        one = case(kind, unreachable, text, ignore_merges)
        check(one)
        assert parsed(one.definition).encoder("auto").name == "fastokens"


@pytest.mark.parametrize("kind", ["byte-level", "llama", "deepseek"])
def test_byte_level_vocabulary_that_lacks_a_byte_is_left_to_the_reference(kind: str) -> None:
    """fastokens failed at a text that contains the byte."""
    definition = case(kind, ("ĊĊ",), "").definition
    entries = [entry for entry in definition["model"]["vocab"] if entry != "Ċ"]
    definition["model"]["vocab"] = {entry: number for number, entry in enumerate(entries)}
    made = parsed(definition)
    assert made.refusal == "its vocabulary lacks the byte 0x0a"
    assert made.encoder("auto").encode_batch(["x\n\nthe"])[0].tolist() == [
        definition["model"]["vocab"][entry] for entry in ("x", "th", "e")
    ]


def test_entries_that_a_byte_level_text_never_contains_keep_fastokens() -> None:
    one = case("llama", (), "a  漢字")
    vocabulary = one.definition["model"]["vocab"]
    definition = one.definition
    definition["model"]["vocab"] = {**vocabulary, "  ": len(vocabulary), "漢字": len(vocabulary) + 1}
    assert fast_refusal(definition) == ""
    made = parsed(definition)
    found, expected = (made.encoder(name).encode_batch(["a  漢字"])[0] for name in ("fastokens", "tokenizers"))
    assert np.array_equal(found, expected)


def with_added(*tokens: tuple[int, str], **entries: int) -> dict[str, Any]:
    """A tokenizer with a vocabulary of 400; tokens: (distance from 400, string); entries: further ones, by distance."""
    definition = json.loads(trained())
    size = len(definition["model"]["vocab"])
    definition["model"]["vocab"] |= {entry: size + number for entry, number in entries.items()}
    definition["added_tokens"] += [{**PLAIN, "id": size + number, "content": content} for number, content in tokens]
    return definition


@pytest.mark.parametrize("tokens", [((7, "<|x|>"),), ((0, "<|y|>"), (7, "<|x|>")), ((7, "<|x|>"), (0, "<|y|>"))])
def test_added_tokens_that_tokenizers_renumbers_are_refused(tokens: tuple[tuple[int, str], ...]) -> None:
    with pytest.raises(TokenizerError, match=r"'<\|x\|>' has id 407, but `tokenizers` gives it 40[01].*placeholders"):
        parsed(with_added(*tokens))


def test_advice_of_the_refusal_works() -> None:
    placeholders = [(number, f"<|placeholder {number}|>") for number in range(7)]
    kept = parsed(with_added(*placeholders, (7, "<|x|>")))
    assert (kept.encoder("fastokens").encode_batch(["<|x|>"])[0].tolist(), kept.vocabulary_size) == ([407], 408)
    given = parsed(with_added((0, "<|x|>")))
    assert (given.encoder("fastokens").encode_batch(["<|x|>"])[0].tolist(), given.vocabulary_size) == ([400], 401)


def test_gaps_between_ids_that_both_libraries_keep_are_accepted() -> None:
    """Added tokens that the model's vocabulary contains keep their ids (the GPT-4 kind). Empty ones never match."""
    made = parsed(with_added((7, "zx"), (20, ""), zx=7))
    ids = made.encoder("auto").encode_batch(["a zx b"])[0]
    assert 407 in ids
    assert made.vocabulary_size == 421
    parts = made.long_texts(made.encoder("auto"), part_bytes=1)
    assert parts.splitter is not None
    assert parts.encode_text("a zx b").tolist() == ids.tolist()


STRIPPING = ["<x>", " ", "\n", "  ", "a ", " a"]


@given(
    st.lists(st.tuples(st.sampled_from(STRIPPING), FLAGS), min_size=1, max_size=3, unique_by=lambda token: token[0]),
    st.lists(st.sampled_from([*STRIPPING, "b"]), max_size=8).map("".join),
    st.sampled_from([None, "NFC"]),
)
@settings(deadline=None, max_examples=150)
@example([("\n", "LR")], "\n\n", None)  # found by the fuzzer: fastokens matched both line breaks
@example([("<x>", "SL"), ("  ", "N")], "a  <x>", None)  # the ModernBERT kind
@example([(" ", "N"), ("  ", "W")], "  a ", None)
@example([(" ", ""), ("  ", "N")], "b  b", None)
@example([(" a", ""), ("a ", "N")], "b a a b", None)
def test_texts_in_which_added_tokens_may_claim_the_same_place_are_left_to_the_reference(
    added: list[tuple[str, str]], text: str, normalizer: str | None
) -> None:
    check(Case("byte-level", (), (), False, normalizer, tuple(added), text, "keep", (1, 8, 40, 1)))


@given(
    st.lists(
        st.tuples(st.sampled_from(["1", "2", "12", "21", "123"]), st.sampled_from(["", "N", "S", "SN", "NL"])),
        min_size=2, max_size=3, unique_by=lambda token: token[0],
    ),
    st.text("123 ", max_size=8),
)  # fmt: skip
@settings(deadline=None, max_examples=150)
@example([("1", "NL"), ("12", "S")], "123")  # found by the fuzzer: fastokens did not match "1" inside "12"
@example([("2", "N"), ("12", "S")], "123")
@example([("23", "N"), ("12", "S")], "123")
def test_tokens_inside_special_tokens_read_as_text_are_left_to_the_reference(
    added: list[tuple[str, str]], text: str
) -> None:
    check(Case("byte-level", (), (), False, None, tuple(added), text, "text", (1, 8, 40, 1)))


def test_other_texts_of_such_a_tokenizer_are_not_left_to_the_reference() -> None:
    added = (("<x>", "L"), ("  ", "N"))
    made = parsed(Case("byte-level", (), (), False, None, added, "", "keep", (1, 8, 40, 1)).definition)
    assert isinstance(encoder := made.encoder("auto"), FastEncoder)
    assert encoder.disputed == ("<x>",)
    added = (("<x>", "NL"), ("  ", "N"))
    normalized = parsed(Case("byte-level", (), (), False, "NFC", added, "", "keep", (1, 8, 40, 1)).definition)
    assert normalized.encoder("auto").name == "tokenizers"
