"""Tests that datakit's own encoder gives the reference's ids, whatever the texts and the state of its buffers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import TokenizerError
from datakit.tokenize.encoders.bpe import encoder as encoder_module
from datakit.tokenize.encoders.bpe.batch import ROOM, Batch
from datakit.tokenize.encoders.bpe.encoder import BpeEncoder
from datakit.tokenize.encoders.bpe.merges import MOST_BYTES
from datakit.tokenize.encoders.safe_cuts import CL100K_KIND
from datakit.tokenize.encoders.tokenizer import Tokenizer, parse
from tests.support.caches import load_tokenizer, trained
from tests.support.tokens.bpe_tokenizers import KINDS, TEXTS, tokenizer_of
from tests.support.tokens.tokenizer_kinds import small_tokenizer

LONG = "a" * (MOST_BYTES + 1)


def own(tokenizer: Tokenizer, special_strings: str = "keep") -> BpeEncoder:
    encoder = tokenizer.encoder("datakit", special_strings)
    assert isinstance(encoder, BpeEncoder)
    return encoder


def plain(kind: str, normalizer: str | None) -> Tokenizer:
    """A tokenizer of this kind without the added tokens that no encoder but the reference supports."""
    definition = {**tokenizer_of(kind, normalizer).definition}
    kept = [token for token in definition["added_tokens"] if token["content"] in ("<n>", "   ")]
    definition["added_tokens"] = [{**token, "id": 600 + number} for number, token in enumerate(kept)]
    made = parse(json.dumps(definition).encode(), "here")
    assert isinstance(made, Tokenizer)
    return made


def same_as_reference(tokenizer: Tokenizer, texts: Sequence[str], special_strings: str = "keep") -> None:
    expected = tokenizer.reference_encoder(special_strings).encode_batch(texts)
    found = own(tokenizer, special_strings).encode_batch(texts)
    assert [part.tolist() for part in found] == [part.tolist() for part in expected]


@pytest.mark.parametrize("normalizer", [None, "NFC"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(texts=st.lists(TEXTS, max_size=5), special_strings=st.sampled_from(["keep", "text"]))
def test_ids_are_the_references(kind: str, normalizer: str | None, texts: list[str], special_strings: str) -> None:
    same_as_reference(plain(kind, normalizer), texts, special_strings)


@given(texts=st.lists(TEXTS, min_size=1, max_size=8), room=st.integers(300, 340))
def test_buffer_may_be_full_anywhere(texts: list[str], room: int) -> None:
    """Words have at most 240 bytes here, so a buffer of 300 ids always has room for one after it was emptied."""
    texts = [text[:60] for text in texts] * 40
    encoder = own(load_tokenizer())
    encoded = [text.encode() for text in texts]
    data, offsets = np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)])
    batch = Batch.of(data, offsets, np.empty(room, np.uint32))
    ids = batch.encode(encoder.model.addresses(encoder.model.added["keep"]))
    expected, lengths = encoder.encode_batch(texts)
    assert (ids.tolist(), batch.lengths.tolist()) == (expected.tolist(), lengths.tolist())


@pytest.mark.parametrize("normalizer", [None, "NFC"])
def test_texts_with_very_long_words_are_left_to_another_encoder(normalizer: str | None) -> None:
    """Also if the buffer was emptied several times within the text, and if the text is normalized."""
    made = plain("gpt2", normalizer)
    before = "some words before it, " * 60_000
    assert len(own(made).encode_batch([before])[0]) > ROOM / 2
    texts = ["first", before + LONG + " after", "", LONG, f"e\u0301 {LONG}", "<n>e\u0301<n>", "last"]
    encoder, seen = own(made), []

    def left(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        seen.extend(texts)
        return made.encoder("fastokens").encode_batch(texts)

    found = encoder.encode_texts(texts, left)
    expected = made.encoder("fastokens").encode_batch(texts)
    assert [part.tolist() for part in found] == [part.tolist() for part in expected]
    assert sorted(map(len, seen)) == sorted(len(text) for text in texts if LONG in text)


@pytest.mark.parametrize("size", [1, 7, encoder_module.PIECE_CHARACTERS])
def test_texts_are_normalized_piece_by_piece(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "PIECE_CHARACTERS", size)
    draw = random.Random(size)
    characters = "ab é\u0301\u0323漢가\u1100\u1161\u11a8\u3099<n> \u212b"
    texts = ["".join(draw.choices(characters, k=draw.randint(0, 900))) for _ in range(60)]
    same_as_reference(plain("gpt2", "NFC"), texts)


def test_apostrophe_before_a_long_s_is_left_to_another_encoder() -> None:
    same_as_reference(plain("cl100k 0", None), ["it'ſ", "x", "'ſ'ſ 'S"])


def test_more_words_than_the_cache_holds() -> None:
    draw = random.Random(7)
    letters = "abcdefghij éß漢"
    texts = [" ".join("".join(draw.choices(letters, k=draw.randint(1, 30))) for _ in range(3000)) for _ in range(100)]
    made = load_tokenizer()
    for _ in range(2):
        expected, found = made.encoder("fastokens").encode_batch(texts), own(made).encode_batch(texts)
        assert [part.tolist() for part in found] == [part.tolist() for part in expected]


def test_threads_take_turns() -> None:
    made = load_tokenizer()
    batches = [[f"batch {number} of some words " * 3000] * 4 for number in range(8)]
    expected = [own(made).encode_batch(texts)[0].tolist() for texts in batches]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda texts: own(made).encode_batch(texts)[0].tolist(), batches * 3))
    assert found == expected * 3


@pytest.mark.parametrize("text", ["#versions", "a b#version", "\u180e~n", "'\u017f\u180e~n", "#versio"])
def test_merges_that_begin_like_a_comment_are_ignored_as_by_the_reference(text: str) -> None:
    """In a file that writes merges as strings."""
    definition = json.loads(trained())
    vocabulary, merges = definition["model"]["vocab"], ["#version: 0.2"]
    for left, right in [*pairwise_growth("#version"), ("#version", "s"), ("~", "n")]:
        vocabulary.setdefault(left + right, len(vocabulary))
        merges.append(f"{left} {right}")
    definition["model"]["merges"] = merges
    split = {"type": "Split", "pattern": {"Regex": sorted(CL100K_KIND)[0]}, "behavior": "Isolated", "invert": False}
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    definition["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, bytes_only]}
    made = parse(json.dumps(definition).encode(), "here")
    assert isinstance(made, Tokenizer)
    same_as_reference(made, [text])


def pairwise_growth(word: str) -> list[tuple[str, str]]:
    """The pairs that make a word from left to right."""
    return [(word[:size], word[size]) for size in range(1, len(word))]


def test_of_two_added_tokens_with_one_string_the_first_counts() -> None:
    definition = json.loads(trained())
    token = {"id": 400, "content": "<a>", "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    definition["added_tokens"] += [{**token, "special": True}, {**token, "special": False}]
    made = parse(json.dumps(definition).encode(), "here")
    assert isinstance(made, Tokenizer)
    for special_strings in ("keep", "text"):
        same_as_reference(made, ["x<a>y"], special_strings)


def test_words_that_no_merge_makes_are_tokens_if_merges_are_ignored() -> None:
    made = small_tokenizer("ignore_merges")
    same_as_reference(made, ["xyzzy", " xyzzy xyzzyx", "字字 漢字", "xyzzy" * 50, "the xyzzy"])
    assert len(own(made).encode_batch(["xyzzy"])[0]) == 1


def test_bytes_beyond_the_text_are_not_read_as_part_of_it() -> None:
    """A column's slice ends where the next texts begin, and the last text ends where the memory ends."""
    encoder = own(load_tokenizer())
    data = np.frombuffer(b"one two threefour five", np.uint8)
    ids, lengths, left = encoder.encode_bytes(data, np.array([4, 7, 13]), encoder.other.encode_batch)
    expected = encoder.encode_batch(["two", " three"])
    assert ([ids.tolist(), lengths.tolist()], left.tolist()) == ([part.tolist() for part in expected], [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"normalizer": {"type": "NFKC"}}, "its normalizer is not NFC"),
        ({"normalizer": {"type": "Lowercase"}}, "its normalizer is not NFC"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "its pre-tokenizer is not byte-level"),
        ({"added_tokens": "\a"}, "it has too many kinds of added tokens, or one of a single byte"),
    ],
)
def test_unsupported_tokenizer_names_the_reason(change: dict[str, Any], reason: str) -> None:
    definition = json.loads(trained())
    if content := change.pop("added_tokens", None):
        token = {"id": 400, "content": content, "special": False, "normalized": False}
        change["added_tokens"] = [{**token, "single_word": False, "lstrip": False, "rstrip": False}]
    made = parse(json.dumps({**definition, **change}).encode(), "here")
    assert isinstance(made, Tokenizer)
    assert made.own == (None, reason)
    assert made.encoder("auto").name != "datakit"
    with pytest.raises(TokenizerError, match="datakit's own encoder cannot be used for this tokenizer"):
        made.encoder("datakit")
