"""Tokens as pieces of text, so that a person sees where one ends and the next begins.

A token may be part of a character (byte-level tokenizers) or carry a space that decoding it alone would lose, so tokens
are decoded as a stream: each piece is what the text grows by, and tokens that only together are text are one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers.decoders import DecodeStream

from datakit.errors import TokenizerError
from datakit.tokenize.encoders.tokenizer import Tokenizer, load

LONGEST_CHARACTER = 8  # tokens that one piece may take; what is no text after so many is shown as it is


@dataclass(frozen=True)
class Piece:
    """One or more tokens and the text that they are."""

    ids: tuple[int, ...]
    text: str


def load_reference(url: str) -> Tokenizer:
    """The tokenizer of a cache, to decode with. Raises TokenizerError where it is code, and no tokenizer.json."""
    tokenizer = load(url)
    if not isinstance(tokenizer, Tokenizer):
        raise TokenizerError(f"{url} describes a tokenizer that is code of its own; it does not say how to decode")
    return tokenizer


def pieces(tokenizer: Tokenizer, tokens: Sequence[int] | np.ndarray) -> Iterator[Piece]:
    """The tokens' text, in order; every token is in exactly one piece."""
    stream, waiting = DecodeStream(skip_special_tokens=False), []
    for number in (int(token) for token in tokens):
        waiting.append(number)
        text = stream.step(tokenizer.reference, number)
        if text is None and len(waiting) < LONGEST_CHARACTER:
            continue
        if text is None:
            text = tokenizer.reference.decode(waiting, skip_special_tokens=False)
            stream = DecodeStream(skip_special_tokens=False)
        yield Piece(tuple(waiting), text)
        waiting = []
    if waiting:
        yield Piece(tuple(waiting), tokenizer.reference.decode(waiting, skip_special_tokens=False))


def token_text(tokenizer: Tokenizer, number: int) -> str:
    """One token as people write it: its text, or, where it has none by itself, its name in the vocabulary."""
    text = tokenizer.reference.decode([number], skip_special_tokens=False)
    if text and "\N{REPLACEMENT CHARACTER}" not in text:
        return text
    return tokenizer.reference.id_to_token(number) or f"#{number}"
