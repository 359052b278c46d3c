"""Tests that the tables of characters agree with the reference's regular expressions and its NFC."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import Split

from datakit.tokenize.encoders.bpe.batch import Batch, output
from datakit.tokenize.encoders.bpe.character_tables import (
    CODE_POINTS,
    LETTER,
    NUMBER,
    OTHER,
    UNSTABLE,
    WHITE,
    character_classes,
    combining_classes,
)
from datakit.tokenize.encoders.bpe.encode_kernel import find_unstable
from datakit.tokenize.encoders.bpe.memory_access import address_of

CHARACTERS = "".join(chr(number) for number in range(CODE_POINTS) if not 0xD800 <= number < 0xE000)
HARD = st.sampled_from(
    [*"aé\u0301\u0323\u0327\u1100\u1161\u11a8가\u0928\u093c\u094d\u0e48\u0e38\u09be\u3099", "\ufb1d"]
)


def unstable(texts: list[str]) -> np.ndarray:
    """Return which of the texts NFC may change."""
    encoded = [text.encode() for text in texts]
    data, offsets = np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)])
    batch = Batch.of(data, offsets, output())
    find_unstable(batch.addresses(), np.uint64(address_of(combining_classes())))
    return batch.skipped == 1


def test_classes_of_all_characters_are_those_of_the_references_expressions() -> None:
    for kind, expression in ((LETTER, r"\p{L}+"), (NUMBER, r"\p{N}+"), (WHITE, r"\s+"), (OTHER, r"[^\s\p{L}\p{N}]+")):
        left = "".join(piece for piece, _ in Split(Regex(expression), "removed").pre_tokenize_str(CHARACTERS))
        expected = set(CHARACTERS) - set(left)
        assert {chr(number) for number in np.flatnonzero(character_classes() == kind)} & set(CHARACTERS) == expected


def test_nfc_changes_no_character_that_counts_as_stable() -> None:
    table, reference = combining_classes(), NFC()
    stable = [text for text in CHARACTERS if table[ord(text)] != UNSTABLE]
    assert len(stable) > 280_000
    assert reference.normalize_str("".join(f"{text}\n" for text in stable)) == "".join(f"{text}\n" for text in stable)
    after_letters = "".join(f"a{text}e{text}ka{text}\n" for text in stable)
    assert reference.normalize_str(after_letters) == after_letters


@given(st.lists(st.text() | st.lists(HARD).map("".join), max_size=20))
def test_nfc_changes_no_text_that_counts_as_stable(texts: list[str]) -> None:
    for text, may_change in zip(texts, unstable(texts).tolist(), strict=True):
        assert may_change or NFC().normalize_str(text) == text


def test_common_texts_count_as_stable() -> None:
    texts = [
        "",
        "plain",
        "déjà vu " * 20,
        "日本語、カタカナ。",
        "한국어",
        "ภาษาไทย",
        "สวัสดี",
        "Tiếng Việt",
        "русский",
        "שלום",
    ]
    assert not unstable(texts).any()


def test_texts_that_nfc_changes_do_not_count_as_stable() -> None:
    assert unstable(["e\u0301", "a" * 31 + "e\u0301", "\u1100\u1161", "a\u0301\u0323", "\u212b", "\u0344"]).all()
