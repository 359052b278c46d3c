"""Reads the added tokens of a tokenizer.json, and splits texts at them as `tokenizers` (the reference) does.

An added token is matched before pre-tokenization. If special tokens are treated as ordinary text, the string of a
special token is still skipped as a whole, so no other added token of the same pass (before or after normalization) is
found inside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any


def added_tokens(tokenizer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the list of added tokens in a tokenizer.json, or an empty list if it has none."""
    return tokenizer.get("added_tokens") or []


def cut_at_added(text: str, added: dict[str, int | None]) -> Iterator[tuple[str, int | None]]:
    """Split a text at added tokens. Yield (token, id) for each added token, and (stretch, None) for each stretch of
    other text, in order. Where matches overlap, the leftmost one is taken, and of those that start at the same place,
    the longest one. A token whose id is None stays part of its stretch, so that no other token is found inside its
    string.
    """
    if not added:
        if text:
            yield text, None
        return
    start = 0
    for found in _any_of(tuple(added)).finditer(text):
        if added[found[0]] is None:
            continue
        if found.start() > start:
            yield text[start : found.start()], None
        yield found[0], added[found[0]]
        start = found.end()
    if start < len(text):
        yield text[start:], None


@lru_cache(maxsize=8)
def _any_of(strings: tuple[str, ...]) -> re.Pattern[str]:
    """Return an expression that matches any of the strings, preferably the longest. (To escape them for every text
    takes longer than to search a short text.)
    """
    return re.compile("|".join(map(re.escape, sorted(strings, key=len, reverse=True))))


def added_by_string(
    tokens: Sequence[dict[str, Any]], special: bool
) -> tuple[dict[str, int | None], dict[str, int | None]]:
    """Return two mappings from string to id: one for the added tokens that are matched before normalization, and one
    for those that are matched after it. Unless `special` is true, special tokens have the id None.
    """
    first = {token["content"]: token for token in reversed(tokens)}  # of equal strings, the reference keeps the first
    matched = [token for token in first.values() if token["content"]]
    raw, normalized = ([token for token in matched if token.get("normalized") is flag] for flag in (False, True))

    def ids(chosen: list[dict[str, Any]]) -> dict[str, int | None]:
        return {token["content"]: token["id"] if special or not token["special"] else None for token in chosen}

    return ids(raw), ids(normalized)
