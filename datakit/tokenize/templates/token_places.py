"""Finds the places of tokens in a text: from their sizes, if the tokenizer is byte-level and its normalizer changes
nothing. Makes the loss mask from these places.
"""

from __future__ import annotations

import unicodedata
from typing import Any, Literal

import numpy as np
from tokenizers import decoders, normalizers

from datakit.cache.lengths import starts_of
from datakit.tokenize.encoders.added_tokens import added_tokens
from datakit.tokenize.encoders.tokenizer import Tokenizer
from datakit.tokenize.encoders.word_models import token_sizes
from datakit.tokenize.templates.marks import Span

FORMS: dict[type, Literal["NFC", "NFD", "NFKC", "NFKD"]] = {
    normalizers.NFC: "NFC",
    normalizers.NFD: "NFD",
    normalizers.NFKC: "NFKC",
    normalizers.NFKD: "NFKD",
}


def sizes_of(tokenizer: Tokenizer) -> np.ndarray | None:
    """Return the size of each token in bytes, int64 [V]; None if the tokenizer is not byte-level."""
    vocabulary = tokenizer.definition.get("model", {}).get("vocab")
    if not isinstance(tokenizer.reference.decoder, decoders.ByteLevel) or not isinstance(vocabulary, dict):
        return None
    known = token_sizes(vocabulary)
    sizes = np.zeros(max(tokenizer.vocabulary_size, len(known)), np.int64)
    sizes[: len(known)] = known
    for token in added_tokens(tokenizer.definition):
        sizes[token["id"]] = len(token["content"].encode())
    return sizes


def unchanged(normalizer: Any, text: str) -> bool:
    """Return True if a normalizer changes nothing in a text."""
    if normalizer is None:
        return True
    form = FORMS.get(type(normalizer))
    return unicodedata.is_normalized(form, text) if form else normalizer.normalize_str(text) == text


def bytes_before(text: str) -> np.ndarray:
    """Return how many bytes of UTF-8 precede each character of a text, and how many it has in all, int64 [C + 1].

    >>> bytes_before("aé漢").tolist()
    [0, 1, 3, 6]
    """
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return starts_of(1 + (points > 0x7F).astype(np.int64) + (points > 0x7FF) + (points > 0xFFFF))


def mask_of(text: str, spans: list[Span], places: np.ndarray) -> np.ndarray:
    """Return the loss mask of a conversation, uint8 [T]: 1 for each token that shares a byte with a span. places: the
    first byte of each token and the byte after its last, int64 [T, 2]. Spans count characters.
    """
    mask = np.zeros(len(places), np.uint8)
    before = np.arange(len(text) + 1) if text.isascii() else bytes_before(text)
    for start, stop in spans:
        if stop > start:
            mask[(places[:, 0] < before[stop]) & (places[:, 1] > before[start])] = 1
    return mask
