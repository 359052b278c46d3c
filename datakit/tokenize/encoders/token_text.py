"""Decodes tokens into pieces of text for display, and decides which tokens are shown together as one piece. A token may
be part of a character (in byte-level tokenizers), or may carry a space that is lost when the token is decoded alone.
Therefore tokens are decoded as a stream. A piece is the text that one token adds, or the text of several tokens that
form text only together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import decoders
from tokenizers.decoders import DecodeStream

from datakit.errors import TokenizerError
from datakit.tokenize.encoders.tokenizer import Tokenizer, load
from datakit.tokenize.encoders.word_models import byte_characters

BYTES = {character: byte for byte, character in enumerate(byte_characters())}
LONGEST_CHARACTER = 8  # maximum number of tokens per piece; this many become a piece even if they do not form text


@dataclass(frozen=True)
class Piece:
    """One or more tokens, and the text that they form."""

    ids: tuple[int, ...]
    text: str


def load_reference(url: str) -> Tokenizer:
    """Load a cache's tokenizer.json, which is at `url`, for decoding. Raises TokenizerError if it describes a custom
    tokenizer.
    """
    tokenizer = load(url)
    if not isinstance(tokenizer, Tokenizer):
        raise TokenizerError(f"{url} describes the tokenizer {tokenizer.inner.name!r}, which cannot decode tokens")
    return tokenizer


def pieces(tokenizer: Tokenizer, tokens: Sequence[int] | np.ndarray) -> Iterator[Piece]:
    """Yield the text of the tokens in pieces, in order. Every token is in exactly one piece."""
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
    """Return one token's text. If the token does not form text on its own, return its bytes as a string in which bytes
    that are not UTF-8 are escaped (byte-level tokenizers), or the token's name in the vocabulary (other tokenizers).
    """
    text = tokenizer.reference.decode([number], skip_special_tokens=False)
    if text and "\N{REPLACEMENT CHARACTER}" not in text:
        return text
    name = tokenizer.reference.id_to_token(number) or f"#{number}"
    if isinstance(tokenizer.reference.decoder, decoders.ByteLevel) and all(sign in BYTES for sign in name):
        return bytes(BYTES[sign] for sign in name).decode("utf-8", "backslashreplace")
    return name
