"""Defines the kinds of scores, and the settings that are needed to load a model."""

from __future__ import annotations

from dataclasses import dataclass

SOFTMAX, SIGMOID, RAW = "softmax", "sigmoid", "raw"
SCORES = (SOFTMAX, SIGMOID, RAW)


@dataclass(frozen=True)
class ModelSettings:
    """A model and its tokenizer, with their sha256s; the output that is read, "" for the first; the number of its
    values; and the maximum number of tokens of a text.
    """

    model: str
    sha256: str
    tokenizer: str
    tokenizer_sha256: str
    output: str
    size: int
    max_tokens: int
