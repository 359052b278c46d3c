"""Finds added tokens in a text: strings that become one token wherever they occur, before the text is split into words.
Where matches overlap, the leftmost one counts, and of those that start at the same place, the longest one.

The added tokens of a tokenizer begin with only a few different pairs of bytes. A search for these pairs, which tests
64 positions at a time, skips most of a text. Where it finds one, a trie of all added tokens is walked. Addresses and
numbers are uint64 (memory_access.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from datakit.tokenize.encoders.bpe.memory_access import address_of, byte, pairs64, trailing_zeros, word32, word64

MOST_PAIRS = 8
MOST_NODES = 1 << 13  # of the trie: 8 MB
AS_TEXT = np.uint64(1 << 62)  # the id of a token whose string is text, in which no other added token is found
_NO_TOKEN = np.uint64(1 << 63)
_BYTES, _BLOCK = np.uint64(256), np.uint64(64)
_ZERO, _ONE = np.uint64(0), np.uint64(1)

kernel = njit(nogil=True)


@dataclass(frozen=True, eq=False)
class AddedTokens:
    """The added tokens of a tokenizer. pairs: uint8 [2 * P], the pairs of bytes with which they begin. nodes: uint32 [N
    * 256], the child of each node of the trie for each byte, 0 if there is none; node 0 is the root. ids: uint64 [N],
    the id of the token that ends in a node, or AS_TEXT.
    """

    pairs: np.ndarray
    nodes: np.ndarray
    ids: np.ndarray

    def addresses(self) -> AddedAddresses:
        places = (address_of(array) for array in (self.pairs, self.nodes, self.ids))
        return AddedAddresses(np.uint64(len(self.pairs) // 2), *(np.uint64(place) for place in places))


class AddedAddresses(NamedTuple):
    """The addresses of the arrays of `AddedTokens`, and the number of pairs: uint64 each."""

    size: np.uint64
    pairs: np.uint64
    nodes: np.uint64
    ids: np.uint64


def is_searchable(tokens: Collection[str]) -> bool:
    """Return False if the tokens begin with too many different pairs of bytes, have too many bytes in all, or if one of
    them is a single byte.
    """
    strings = [token.encode() for token in tokens]
    pairs = {string[:2] for string in strings}
    return len(pairs) <= MOST_PAIRS and sum(map(len, strings)) < MOST_NODES and all(len(pair) == 2 for pair in pairs)


def added_tokens_table(tokens: Mapping[str, int | None]) -> AddedTokens:
    """Return the table of searchable tokens. tokens: the id of each string; None for a string that is text."""
    trie: list[dict[int, int]] = [{}]
    ends: dict[int, int | None] = {}
    for token, number in tokens.items():
        node = 0
        for value in token.encode():
            if value not in trie[node]:
                trie[node][value] = len(trie)
                trie.append({})
            node = trie[node][value]
        ends[node] = number
    nodes, ids = np.zeros((len(trie), 256), np.uint32), np.full(len(trie), _NO_TOKEN)
    for node, children in enumerate(trie):
        for value, child in children.items():
            nodes[node, value] = child
    for node, number in ends.items():
        ids[node] = AS_TEXT if number is None else number
    pairs = sorted({token.encode()[:2] for token in tokens})
    return AddedTokens(np.frombuffer(b"".join(pairs) or b"\0", np.uint8)[: 2 * len(pairs)], nodes.ravel(), ids)


@kernel
def next_pair(text: np.uint64, at: np.uint64, stop: np.uint64, readable: np.uint64, added: AddedAddresses) -> np.uint64:
    """Return the first position from `at` on at which two bytes before `stop` are a pair of `added`; `stop` if there is
    none.
    """
    while at + _ONE < stop:
        if at + _BLOCK < readable:
            found = _ZERO
            for i in range(added.size):
                found |= pairs64(text, at, byte(added.pairs, i + i), byte(added.pairs, i + i + _ONE))
            at += trailing_zeros(found)
            if found != _ZERO:
                return at if at + _ONE < stop else stop
            continue
        for i in range(added.size):
            if byte(text, at) == byte(added.pairs, i + i) and byte(text, at + _ONE) == byte(added.pairs, i + i + _ONE):
                return at
        at += _ONE
    return stop


@kernel
def match(text: np.uint64, at: np.uint64, stop: np.uint64, added: AddedAddresses) -> tuple[np.uint64, np.uint64]:
    """Return the end and the id of the longest added token that begins at `at`; (`at`, _NO_TOKEN) if there is none."""
    node, end, number = _ZERO, at, _NO_TOKEN
    while at < stop:
        node = word32(added.nodes, node * _BYTES + byte(text, at))
        if node == _ZERO:
            break
        at += _ONE
        if word64(added.ids, node) != _NO_TOKEN:
            end, number = at, word64(added.ids, node)
    return end, number


@kernel
def next_match(
    text: np.uint64, at: np.uint64, stop: np.uint64, readable: np.uint64, added: AddedAddresses
) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Return the start, the end and the id of the first added token from `at` on, without those that are text; (stop,
    stop, _) if there is none.
    """
    if added.size == _ZERO:
        return stop, stop, _NO_TOKEN
    while at < stop:
        at = next_pair(text, at, stop, readable, added)
        if at >= stop:
            break
        end, number = match(text, at, stop, added)
        if number < AS_TEXT:
            return at, end, number
        at = end if number == AS_TEXT else at + _ONE
    return stop, stop, _NO_TOKEN
