"""Finds the strings of special tokens, in the values of a conversation and in a rendered text.

The process that renders imports this module, so it imports nothing but the standard library.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from datakit.tokenize.templates.marks import BEGIN, END, Span


class SpecialStrings:
    """Finds the strings of special tokens, and marks them. Of those that begin at the same place, the longest counts,
    as in `tokenizers`.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self.strings = sorted((string for string in set(strings) if string), key=lambda one: (-len(one), one))
        self._pattern = _compiled(self.strings)

    def occur_in(self, value: Any) -> bool:
        """Return True if a string in a value of JSON may contain the string of a special token."""
        return any(self._pattern.search(text) for text in strings_of(value))

    def places(self, text: str) -> list[Span]:
        """Return the spans of these strings in a text."""
        return [found.span() for found in self._pattern.finditer(text)]

    def marked(self, value: Any) -> Any:
        """Return a value with marks around these strings, at any depth."""
        if isinstance(value, str):
            return self._pattern.sub(lambda found: f"{BEGIN}{found.group()}{END}", value)
        if isinstance(value, dict):
            return {self.marked(name): self.marked(one) for name, one in value.items()}
        return [self.marked(one) for one in value] if isinstance(value, list) else value


def _compiled(strings: list[str]) -> re.Pattern[str]:
    """Compile a pattern that matches the longest of the strings. Some tokenizers have a thousand special tokens, so
    strings with the same beginning share it; trying one after another would take five times as long.
    """
    try:
        return re.compile(_alternatives(strings) or "(?!)")
    except RecursionError:  # hundreds of strings of which each begins the next
        return re.compile("|".join(map(re.escape, strings)))


def _alternatives(strings: list[str]) -> str:
    parts = []
    for _, group in itertools.groupby(sorted(filter(None, strings)), key=lambda one: one[0]):
        same = list(group)
        pairs = enumerate(zip(same[0], same[-1], strict=False))
        size = next((at for at, (one, other) in pairs if one != other), len(same[0]))
        parts.append(re.escape(same[0][:size]) + _alternatives([one[size:] for one in same]))
    return f"(?:{'|'.join(parts)}){'?' * ('' in strings)}" if parts else ""


def strings_of(value: Any) -> Iterator[str]:
    """Yield the strings in a value of JSON, names included, because a template may write them, too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from (name, *strings_of(one))
    elif isinstance(value, list):
        for one in value:
            yield from strings_of(one)
