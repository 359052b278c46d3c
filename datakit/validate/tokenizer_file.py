"""Loads the tokenizer of the cache that is being checked, once for all checks."""

from __future__ import annotations

from functools import lru_cache

from datakit.storage import urls
from datakit.tokenize.encoders.custom import CustomTokenizer
from datakit.tokenize.encoders.tokenizer import Tokenizer, parse


def tokenizer_at(url: str) -> Tokenizer | CustomTokenizer:
    """Load the tokenizer.json at `url`. Raises TokenizerError if it cannot be loaded."""
    return _parsed(urls.read_bytes(url), url)


@lru_cache(maxsize=1)
def _parsed(data: bytes, url: str) -> Tokenizer | CustomTokenizer:
    return parse(data, url)
