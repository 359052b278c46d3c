"""Tests of showing tokens as pieces of text."""

from __future__ import annotations

from pathlib import Path

from datakit.tokenize.encoders.token_text import load_reference, pieces, token_text
from tests.support.caches import load_tokenizer, trained

ODD = "naïve \U0001f469\u200d\U0001f680 日本語\n\ttab \x1b[31mred\x1b[0m end"


def test_pieces_are_the_text_with_every_token_in_one(tmp_path: Path) -> None:
    """Characters of several tokens are one piece; no token is lost if the tokens start inside a character."""
    (tmp_path / "tokenizer.json").write_bytes(trained())
    tokenizer = load_reference(str(tmp_path / "tokenizer.json"))
    ids = tokenizer.reference.encode(ODD, add_special_tokens=False).ids
    found = list(pieces(tokenizer, ids))
    assert "".join(piece.text for piece in found) == ODD
    assert any(len(piece.ids) > 1 for piece in found)
    for start in range(len(ids)):
        assert [number for piece in pieces(tokenizer, ids[start:]) for number in piece.ids] == ids[start:]
    assert token_text(tokenizer, 0) == "<|endoftext|>"
    assert all(token_text(tokenizer, number) for number in range(tokenizer.vocabulary_size))


def test_parts_of_characters_are_shown_as_bytes() -> None:
    tokenizer = load_tokenizer()
    number = tokenizer.reference.token_to_id("Ġ"), tokenizer.reference.token_to_id("ä")
    assert number[0] is not None and number[1] is not None
    assert token_text(tokenizer, number[0]) == " "
    assert token_text(tokenizer, number[1]) == r"\xe4"
