"""Tests that added tokens are found where the reference finds them."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datakit.tokenize.encoders.added_tokens import cut_at_added
from datakit.tokenize.encoders.bpe.added_matches import (
    MOST_NODES,
    MOST_PAIRS,
    added_tokens_table,
    is_searchable,
    next_match,
)
from datakit.tokenize.encoders.bpe.memory_access import address_of

TOKENS = {"  ": 1, "   ": 2, "<|": 3, "<|end|>": 4, "|>x": 5, "é<": 6, "<x>": None, "x>  ": 7}
TEXTS = st.lists(st.sampled_from([*TOKENS, *" <|>xé", "end", "plain text " * 9]), max_size=30).map("".join)


def matches(text: str, tokens: dict[str, int | None]) -> list[tuple[str, int]]:
    """The added tokens in a text, with their ids."""
    data = np.frombuffer(text.encode(), np.uint8)
    table = added_tokens_table(tokens)
    place, size, at, found = np.uint64(address_of(data)), np.uint64(len(data)), np.uint64(0), []
    while at < size:
        start, end, number = next_match(place, at, size, size, table.addresses())
        if start < size:
            found.append((data[start:end].tobytes().decode(), int(number)))
        at = np.uint64(end)
    return found


@given(TEXTS)
def test_matches_are_those_of_the_reference(text: str) -> None:
    expected = [(piece, number) for piece, number in cut_at_added(text, TOKENS) if number is not None]
    assert matches(text, TOKENS) == expected


def test_text_without_added_tokens_has_no_match() -> None:
    assert matches("  <|end|>", {}) == []


def test_only_few_kinds_of_tokens_can_be_searched_for() -> None:
    assert is_searchable([])
    assert is_searchable(["<|a|>", "<|b|>", "  ", "é"])
    assert not is_searchable(["a"])
    assert not is_searchable([""])
    pairs = ["".join(pair) for pair in product("abc", "abc")]
    assert is_searchable(pairs[:MOST_PAIRS])
    assert not is_searchable(pairs[: MOST_PAIRS + 1])
    assert is_searchable(["<" * (MOST_NODES - 1)])
    assert not is_searchable(["<" * MOST_NODES])
