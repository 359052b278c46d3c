"""Tests that words are merged as byte-pair encoding defines it."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from datakit.tokenize.encoders.bpe.memory_access import address_of
from datakit.tokenize.encoders.bpe.merge_table import merges_table
from datakit.tokenize.encoders.bpe.merges import MOST_BYTES, Workspace, merge_word

Pairs = list[tuple[int, int]]


def random_merges(seed: int, alphabet: bytes, count: int) -> Pairs:
    """Merges of bytes and of tokens that earlier merges make; some are listed twice."""
    draw, tokens, pairs = random.Random(seed), list(alphabet), []
    for number in range(count):
        pairs.append((draw.choice(tokens), draw.choice(tokens)))
        tokens.append(256 + number)
    return pairs


def merged_by_definition(word: bytes, pairs: Pairs) -> list[int]:
    """The tokens of a word, by searching all its pairs before each merge."""
    tokens, ranks = list(word), {pair: rank for rank, pair in enumerate(pairs)}
    while True:
        found = [(ranks[pair], at) for at, pair in enumerate(pairwise(tokens)) if pair in ranks]
        if not found:
            return tokens
        rank, at = min(found)
        tokens[at : at + 2] = [256 + rank]


def merged(word: bytes, pairs: Pairs) -> list[int]:
    merges = merges_table(
        np.array(pairs, np.uint64).reshape(-1, 2),
        np.arange(256, 256 + len(pairs), dtype=np.uint32),
        np.arange(256, dtype=np.uint32),
    )
    space, data = Workspace.new(), np.frombuffer(word, np.uint8)
    place, size = np.uint64(address_of(data)), np.uint64(len(word))
    count = merge_word(place, np.uint64(0), size, merges.addresses(), space.addresses())
    return space.tokens[: int(count)].tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 15, 16, 17, 33, 191, 192, 193, 500])
@pytest.mark.parametrize("alphabet", [b"a", b"ab", b"abcdefgh"])
def test_words_of_every_size_are_merged_as_defined(size: int, alphabet: bytes) -> None:
    for seed in range(8):
        draw, pairs = random.Random(seed), random_merges(seed, alphabet, 40)
        word = bytes(draw.choices(alphabet, k=size))
        assert merged(word, pairs) == merged_by_definition(word, pairs)


def test_word_of_the_greatest_size_is_merged() -> None:
    pairs = [(97, 97), *((255 + number, 255 + number) for number in range(1, 12))]  # a word of 2**n bytes is one token
    assert merged(b"a" * MOST_BYTES, pairs) == [256 + 11]


def test_word_without_merges_keeps_its_bytes() -> None:
    assert merged(b"abc", []) == [97, 98, 99]


def test_last_rank_of_a_pair_that_is_listed_twice_counts() -> None:
    pairs = [(97, 98), (98, 99), (97, 98)]
    assert merged(b"abc", pairs) == [97, 257]
    assert merged(b"ab", pairs) == [258]
