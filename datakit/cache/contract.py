"""The contract of a cache: what its tokens mean, stored with them and checked.

It has happened that caches lacked a begin-of-text token after a library changed its default, and nobody noticed until a
model was trained. So the cache records the tokenizer file's hash, the tokens added around each document, and a few
strings with their ids; every document's first and last tokens are checked when it is written. This module needs only
numpy and msgspec, because every reader of a cache reads the contract.
"""

from __future__ import annotations

import msgspec
import numpy as np

from datakit.errors import CorruptError, TokenizerError

SMALL_VOCABULARY = 1 << 16  # largest vocabulary whose ids fit uint16
SPECIAL_STRINGS = "as the tokenizer does"  # "<|endoftext|>" inside a text: the tokenizer file decides
AS_TEXT = "ordinary text"  # the string is encoded like any other text; only the contract adds special tokens
WHOLE = "whole"
PARTS = "parts"


class Special(msgspec.Struct, frozen=True):
    """A special token's string and id."""

    token: str
    id: int


class Golden(msgspec.Struct, frozen=True):
    """A string and the ids it must have, with no tokens added."""

    text: str
    ids: list[int]


class Contract(msgspec.Struct, frozen=True):
    """The contract of a cache.

    bos, eos: the token before and after each document; None if there is none. vocabulary_size: the highest id + 1,
    added tokens included. fallback: the reason why fastokens could not encode, or empty. special_strings: the way a
    special token's string inside a text is encoded. long_texts: "parts" if long documents are encoded in parts, with
    the same ids as in one piece, else "whole: <reason>".
    """

    tokenizer_sha256: str
    encoder: str
    vocabulary_size: int
    bos: Special | None
    eos: Special | None
    golden: list[Golden]
    special_strings: str = SPECIAL_STRINGS
    encoder_version: str = ""
    fallback: str = ""
    long_texts: str = WHOLE

    @property
    def dtype(self) -> np.dtype:
        """The type in which ids are stored: uint16 if the vocabulary fits, else uint32."""
        return np.dtype(np.uint16 if self.vocabulary_size <= SMALL_VOCABULARY else np.uint32)

    def require(self, tokenizer_sha256: str, place: str) -> None:
        if tokenizer_sha256 != self.tokenizer_sha256:
            raise TokenizerError(
                f"{place} was made with the tokenizer whose sha256 is {self.tokenizer_sha256}, not {tokenizer_sha256}; "
                f"use the tokenizer.json next to the cache, or tokenize the dataset again with yours"
            )


def frame(ids: np.ndarray, lengths: np.ndarray, contract: Contract) -> tuple[np.ndarray, np.ndarray]:
    """Add the contract's tokens around documents: text ids uint32 [T], lengths [N] -> stored tokens and their lengths.

    Raises TokenizerError for an id outside the vocabulary.
    """
    if len(ids) and int(ids.max()) >= contract.vocabulary_size:
        raise TokenizerError(
            f"encoder {contract.encoder!r} returned the id {int(ids.max())}, but the vocabulary has only "
            f"{contract.vocabulary_size} ids"
        )
    framed, ends, from_text = _positions(lengths, contract)
    tokens = np.empty(len(from_text), contract.dtype)
    tokens[from_text] = ids
    if contract.bos is not None:
        tokens[ends - framed] = contract.bos.id
    if contract.eos is not None:
        tokens[ends - 1] = contract.eos.id
    return tokens, framed


def frame_mask(mask: np.ndarray, lengths: np.ndarray, contract: Contract) -> np.ndarray:
    """Extend a loss mask uint8 [T] of text tokens to the tokens that `frame` returns.

    Begin-of-text is not a target; end-of-text is a target if the token before it is one.
    """
    framed, ends, from_text = _positions(lengths, contract)
    out = np.zeros(len(from_text), np.uint8)
    out[from_text] = mask
    if contract.eos is not None:
        last = ends[framed > 1] - 1
        out[last] = out[last - 1]
    return out


def _positions(lengths: np.ndarray, contract: Contract) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return documents' lengths and ends with the contract's tokens, [N], and a mask, True for tokens of the text."""
    framed = lengths + (int(contract.bos is not None) + int(contract.eos is not None))
    ends = np.cumsum(framed)
    from_text = np.ones(int(ends[-1]) if len(ends) else 0, bool)
    if contract.bos is not None:
        from_text[ends - framed] = False
    if contract.eos is not None:
        from_text[ends - 1] = False
    return framed, ends, from_text


def check_ends(tokens: np.ndarray, lengths: np.ndarray, contract: Contract, place: str) -> None:
    """Raise CorruptError unless every document starts and ends with the contract's tokens."""
    ends = np.cumsum(lengths)
    if (int(ends[-1]) if len(ends) else 0) != len(tokens):
        raise CorruptError(f"{place}: {len(tokens)} tokens, but the documents' lengths add up to {int(ends[-1])}")
    for special, places, side in ((contract.bos, ends - lengths, "begin"), (contract.eos, ends - 1, "end")):
        if special is not None and not (lengths.all() and (tokens[places] == special.id).all()):
            raise CorruptError(
                f"{place}: a document does not {side} with {special.token!r} ({special.id}); the shard was not written"
            )
