"""Derives the length of each token in bytes from a tokenizer.json, for bits per byte.

In a byte-level vocabulary, each character of an entry stands for one byte. Special tokens stand for no text, so their
length is 0. A file of another kind gives no lengths, and neither does a damaged or a hostile one.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np

from datakit.errors import TokenizerError

MOST_IDS = 1 << 24  # no tokenizer has more; with this limit, the array of token lengths takes at most 128 MiB
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=MOST_IDS)]


class _AddedToken(msgspec.Struct):
    id: _TokenId
    content: str
    special: bool


class _Model(msgspec.Struct):
    vocab: dict[str, _TokenId]


class _TokenizerFile(msgspec.Struct):
    """The parts of a tokenizer.json that the lengths depend on. The file may come from a stranger."""

    model: _Model
    decoder: Any = None
    added_tokens: list[_AddedToken] = []


def token_byte_lengths(tokenizer: bytes, place: str) -> np.ndarray:
    """Return the length of each token in bytes [V]; special tokens have length 0. `tokenizer` holds a byte-level
    tokenizer.json, in which each character of a vocabulary entry stands for one byte. Raises TokenizerError for other
    vocabularies and other files.
    """
    try:
        document = msgspec.json.decode(tokenizer, type=_TokenizerFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unknown_lengths(place, f" ({error})") from error
    vocabulary, added = document.model.vocab, document.added_tokens
    if not vocabulary or b"ByteLevel" not in msgspec.json.encode(document.decoder):
        raise _unknown_lengths(place, "")
    lengths = np.zeros(1 + max([*vocabulary.values(), *(token.id for token in added)]), np.int64)
    for entry, number in vocabulary.items():
        lengths[number] = len(entry)
    for token in added:
        lengths[token.id] = 0 if token.special else len(token.content.encode())
    return lengths


def _unknown_lengths(place: str, why: str) -> TokenizerError:
    return TokenizerError(
        f"{place} has no byte-level vocabulary{why}, so the lengths of its tokens in bytes are unknown; "
        "to get bits per byte, pass `token_bytes` to `train` or `evaluate` in Python"
    )
