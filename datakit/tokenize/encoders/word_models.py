"""Decides whether the model of a tokenizer.json allows encoding word by word, and describes the model's byte-level
vocabulary: which character stands for each byte, and how many bytes each token has.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from datakit.tokenize.encoders.added_tokens import added_tokens
from datakit.tokenize.encoders.long_words import OVERLAP, WINDOW_BYTES

UTF8_BYTES = [*range(0xC0), *range(0xC2, 0xF5)]


def refusal(tokenizer: dict[str, Any]) -> str:
    """Return the reason why a tokenizer.json does not allow encoding word by word, or "" if it does. Do not reword the
    reasons: manifests store them.
    """
    model = tokenizer["model"]
    if model.get("type") != "BPE" or model.get("dropout"):
        return "its model is not a deterministic BPE"
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix") or model.get("byte_fallback"):
        return "its tokens depend on their place in the word"
    if any(token.get(key) for token in added_tokens(tokenizer) for key in ("lstrip", "rstrip", "single_word")):
        return "it has an added token that depends on what stands around it"
    characters = byte_characters()
    if not all(characters[byte] in model["vocab"] for byte in UTF8_BYTES):
        return "its vocabulary lacks some bytes"
    if max(map(len, model["vocab"])) * 2 > WINDOW_BYTES // OVERLAP:
        return "it has a token of several thousand bytes"
    return ""


def bare(tokenizer: dict[str, Any], *, ignore_merges: bool = False) -> dict[str, Any]:
    """Return a tokenizer.json that keeps only the model of `tokenizer` and treats each text as one word.

    If `ignore_merges` is true, a word that is an entry of the vocabulary becomes a single token, whatever the merges
    are.
    """
    whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {**tokenizer["model"], "ignore_merges": ignore_merges}
    plain = {"normalizer": None, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return {**tokenizer, **plain, "pre_tokenizer": whole, "model": model}


def byte_characters() -> list[str]:
    """Return the characters that stand for the 256 bytes in a byte-level vocabulary, indexed by byte. A printable
    Latin-1 character stands for its own byte; the characters from U+0100 on stand for the other bytes, in order.
    """
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256)]


def token_sizes(vocabulary: dict[str, int]) -> np.ndarray:
    """Return the size in bytes of each token in a byte-level vocabulary: int64, indexed by id."""
    sizes = np.zeros(max(vocabulary.values()) + 1, np.int64)
    for token, number in vocabulary.items():
        sizes[number] = len(token)
    return sizes
