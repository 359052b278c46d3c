"""Defines a cache's contract (the tokenizer's hash, the tokens added around each document, and sample encodings), and
checks tokenizers and documents against it. A tokenizer library once changed one of its defaults. As a result, caches
lacked the begin-of-text token, and nobody noticed until a model had been trained. A cache therefore records the hash of
the tokenizer file, the tokens added around each document, and a few strings with their ids. The first and last tokens
of every document are checked when the document is written. Every reader of a cache reads the contract, so this module
imports no libraries except numpy and msgspec.
"""

from __future__ import annotations

import msgspec
import numpy as np

from datakit.errors import CorruptError, TokenizerError

SMALL_VOCABULARY = 1 << 16  # the largest vocabulary whose ids fit in uint16
# The two values of `Contract.special_strings`. They say how a special token's string is encoded if it occurs inside a
# text: as the tokenizer itself encodes it (usually as the special token), or like any other text.
SPECIAL_STRINGS = "as the tokenizer does"
AS_TEXT = "ordinary text"
WHOLE = "whole"
PARTS = "parts"


class Special(msgspec.Struct, frozen=True):
    """A special token's string and id."""

    token: str
    id: int


class Golden(msgspec.Struct, frozen=True):
    """A string and the ids that the cache's tokenizer returns for it, without added special tokens."""

    text: str
    ids: list[int]


class ChatTemplate(msgspec.Struct, frozen=True):
    """The chat template with which a cache's conversations were rendered.

    sha256: the hash of the other fields. template: its text. tool_use: the text of the template for conversations with
    tools; "" if there is none of its own. variables: the strings of special tokens that it can use, by name. date: the
    date that its function `strftime_now` shows, as "2026-01-31"; "" if it does not use this function.
    """

    sha256: str
    template: str
    tool_use: str
    variables: dict[str, str]
    date: str


class Contract(msgspec.Struct, frozen=True):
    """The meaning of a cache's tokens, as recorded in its manifest.

    bos, eos: the special tokens before and after each document; None if no token is added there. vocabulary_size: the
    highest id of any token, added tokens included, plus 1. fallback: the reason why fastokens could not be used, or an
    empty string. special_strings: the way in which the string of a special token is encoded when it occurs inside a
    text. long_texts: "parts" if long documents are encoded in parts that yield the same ids as the whole document;
    otherwise "whole: <reason>"; "unknown" in an imported cache. chat_template: the template of the conversations; None
    if there are none, or if they have another format.
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
    chat_template: ChatTemplate | None = None

    @property
    def dtype(self) -> np.dtype:
        """The type in which ids are stored: uint16 if all ids of the vocabulary fit, otherwise uint32."""
        return np.dtype(np.uint16 if self.vocabulary_size <= SMALL_VOCABULARY else np.uint32)

    def require(self, tokenizer_sha256: str, place: str) -> None:
        if tokenizer_sha256 != self.tokenizer_sha256:
            raise TokenizerError(
                f"{place} was made with the tokenizer whose sha256 is {self.tokenizer_sha256}, but the sha256 of "
                f"the given tokenizer is {tokenizer_sha256}; use the tokenizer.json in the cache's directory, or "
                f"tokenize the dataset again with the given tokenizer"
            )


def frame(ids: np.ndarray, lengths: np.ndarray, contract: Contract) -> tuple[np.ndarray, np.ndarray]:
    """Add the contract's special tokens around each document; return the tokens to store and the documents' lengths.

    ids: uint32 [T], the token ids of all texts, end to end. lengths: int64 [N], the number of ids of each text; the
    returned lengths include the special tokens. Raises TokenizerError for an id outside the vocabulary.
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
    """Return the loss mask, uint8, of the tokens that `frame` returns. mask: the texts' loss mask, uint8 [T]. A
    begin-of-text token is never a target. An end-of-text token is a target if the token before it is one.
    """
    framed, ends, from_text = _positions(lengths, contract)
    out = np.zeros(len(from_text), np.uint8)
    out[from_text] = mask
    if contract.eos is not None:
        last = ends[framed > 1] - 1
        out[last] = out[last - 1]
    return out


def _positions(lengths: np.ndarray, contract: Contract) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the framed documents' lengths and ends, [N] each, and a mask that is True for the texts' tokens."""
    framed = lengths + (int(contract.bos is not None) + int(contract.eos is not None))
    ends = np.cumsum(framed)
    from_text = np.ones(int(ends[-1]) if len(ends) else 0, bool)
    if contract.bos is not None:
        from_text[ends - framed] = False
    if contract.eos is not None:
        from_text[ends - 1] = False
    return framed, ends, from_text


def check_ends(tokens: np.ndarray, lengths: np.ndarray, contract: Contract, place: str) -> None:
    """Raise CorruptError unless the lengths add up to the number of tokens and every document starts and ends with the
    contract's special tokens.
    """
    ends = np.cumsum(lengths)
    total = int(lengths.sum())
    if total != len(tokens):
        raise CorruptError(f"{place}: there are {len(tokens)} tokens, but the documents' lengths add up to {total}")
    for special, places, side in ((contract.bos, ends - lengths, "begin"), (contract.eos, ends - 1, "end")):
        if special is not None and not (lengths.all() and (tokens[places] == special.id).all()):
            raise CorruptError(
                f"{place}: a document does not {side} with {special.token!r} (id {special.id}); "
                f"the shard was not written"
            )
