"""Finds the entries of lists in a text by trying each entry at each character: slow, and without hashes or blocks."""

from __future__ import annotations

from typing import NamedTuple

from datakit.annotate.lists.characters import MARK, list_table
from datakit.text.unicode_words import ALONE, CHARACTER, WORD


class Match(NamedTuple):
    """An occurrence of an entry: its number, and the characters [start, stop) of the text."""

    entry: int
    start: int
    stop: int


def _flags(character: str) -> int:
    return int(list_table()[ord(character)])


def lower(character: str) -> str:
    return chr(_flags(character) & int(CHARACTER))


def in_word(character: str) -> bool:
    return bool(_flags(character) & int(WORD | ALONE))


def _end(text: str, start: int, entry: str, words: bool) -> int:
    """Return where an occurrence of the entry that begins at `start` ends, or -1."""
    position = start
    for character in entry:
        if words and character == " ":
            first = position
            while position < len(text) and not in_word(text[position]):
                position += 1
            if position == first:
                return -1
        elif position < len(text) and lower(text[position]) == character:
            position += 1
        else:
            return -1
    return position


def _joined(left: str, right: str) -> bool:
    """Return True if no word ends between two neighboring characters."""
    if _flags(right) & int(MARK):
        return True
    return all(_flags(one) & int(WORD) for one in (left, right))


def matches_of(text: str, entries: list[str], words: bool) -> list[Match]:
    """Return all occurrences, by start and stop."""
    found = []
    for start in range(len(text)):
        inside = start > 0 and all(_flags(one) & int(WORD) for one in (text[start - 1], text[start]))
        if words and (inside or not in_word(text[start])):
            continue
        for number, entry in enumerate(entries):
            stop = _end(text, start, entry, words)
            if stop < 0 or (words and stop < len(text) and _joined(text[stop - 1], text[stop])):
                continue
            found.append(Match(number, start, stop))
    return sorted(found, key=lambda one: (one.start, one.stop, one.entry))


def word_places(text: str) -> list[tuple[int, int]]:
    """Return the characters [start, stop) of each word of a text."""
    places: list[tuple[int, int]] = []
    for i, character in enumerate(text):
        flags = _flags(character)
        if flags & int(ALONE):
            places.append((i, i + 1))
        elif flags & int(WORD):
            joined = places and places[-1][1] == i and not _flags(text[i - 1]) & int(ALONE)
            places[-1:] = [(places[-1][0], i + 1)] if joined else [*places[-1:], (i, i + 1)]
    return places
