"""Wraps fastokens, and `tokenizers` (the reference), as encoders that turn texts into ids without adding special
tokens. The setting `special_strings` decides how a special token's string inside a text is encoded. With "keep", the
string is encoded as the special token, which is the default of both libraries. With "text", the string is encoded as
ordinary text. Added tokens that are not special (runs of spaces, for example) are matched under both settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from typing import Protocol

import fastokens
import numpy as np
import tokenizers

OWN = "datakit"  # the name of datakit's own encoder (bpe/encoder.py)
REFERENCE_CHARACTERS = 1 << 20  # characters per batch for the reference, whose Encodings take about 100 bytes per token
_FASTOKENS, _TOKENIZERS = version("fastokens"), version("tokenizers")


class Encoder(Protocol):
    """The protocol of an object that turns texts into ids without adding special tokens.

    Implement it to support other kinds of tokenizers. name, version: the name and version of the library that encodes;
    the contract records both.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all texts, uint32 [T], and the number of ids of each text, int64 [N]."""
        ...


@dataclass(frozen=True)
class FastEncoder:
    """The fastokens encoder. It returns all ids in one buffer and creates no Python object per token.

    Texts that contain a string in `disputed` (see `disagreements.py`) are encoded by `reference`, if there is one.
    """

    tokenizer: fastokens.Tokenizer
    special_as_text: bool = False
    reference: tokenizers.Tokenizer | None = None
    disputed: tuple[str, ...] = ()
    name = "fastokens"
    version = _FASTOKENS

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        strings = self.disputed if self.reference else ()
        disputed = {number for string in strings for number, text in enumerate(texts) if string in text}
        if disputed:
            return self._mixed(texts, disputed)
        ids, offsets = self.tokenizer.encode_batch_flat(list(texts), split_special_tokens=self.special_as_text)
        return np.frombuffer(ids, "<u4"), np.diff(np.frombuffer(offsets, "<u8").astype(np.int64))

    def _mixed(self, texts: Sequence[str], disputed: set[int]) -> tuple[np.ndarray, np.ndarray]:
        """Encode the texts at the indices in `disputed` with the reference, and all others with fastokens."""
        assert self.reference is not None
        slow = ReferenceEncoder(self.reference, self.special_as_text)
        parts, counts = [np.empty(0, np.uint32)], []
        for by_reference, group in groupby(range(len(texts)), disputed.__contains__):
            encoder: Encoder = slow if by_reference else self
            ids, lengths = encoder.encode_batch([texts[number] for number in group])
            parts.append(ids)
            counts.append(lengths)
        return np.concatenate(parts), np.concatenate(counts)


@dataclass(frozen=True)
class ReferenceEncoder:
    """The `tokenizers` encoder. It creates one Encoding object per text, and drops these objects after every million
    characters of text.
    """

    tokenizer: tokenizers.Tokenizer
    special_as_text: bool = False
    name = "tokenizers"
    version = _TOKENIZERS

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        self.tokenizer.encode_special_tokens = self.special_as_text  # set on each call: encoders may share a tokenizer
        parts = [np.empty(0, np.uint32)]
        for piece in _pieces(texts):
            encodings = self.tokenizer.encode_batch_fast(piece, add_special_tokens=False)
            parts += [np.array(encoding.ids, np.uint32) for encoding in encodings]
        return np.concatenate(parts), np.array([len(ids) for ids in parts[1:]], np.int64)


def _pieces(texts: Sequence[str]) -> Iterator[list[str]]:
    piece: list[str] = []
    size = 0
    for text in texts:
        piece.append(text)
        size += len(text)
        if size >= REFERENCE_CHARACTERS:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
