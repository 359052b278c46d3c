"""Defines four marks, and reads them from a rendered text. Between OWN and OTHER is what the template itself wrote.
Between BEGIN and END is the string of a special token in the conversation.

The process that renders imports this module, so it imports nothing but the standard library.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from dataclasses import dataclass

Span = tuple[int, int]
BEGIN, END, OWN, OTHER = "\U0010fdd0", "\U0010fdd1", "\U0010fdd2", "\U0010fdd3"  # private-use characters
MARK = re.compile(f"[{BEGIN}{END}{OWN}{OTHER}]")
MARKS = re.compile(f"({MARK.pattern})")


@dataclass(frozen=True)
class Unmarked:
    """A text without its marks. own: the spans that the template itself wrote, in order and not adjacent. quoted: the
    spans between BEGIN and END, without those whose marks the template has separated.
    """

    text: str
    own: list[Span]
    quoted: list[Span]
    places: list[int]

    def moved(self, spans: list[Span]) -> list[Span]:
        """Return spans of the text with marks as spans of the text without them."""
        ends = [place - bisect_left(self.places, place) for span in spans for place in span]
        return list(zip(ends[::2], ends[1::2], strict=True))


def unmarked(text: str) -> Unmarked:
    """Return a rendered text without its marks.

    >>> unmarked(f"{OWN}<e>{OTHER}a{BEGIN}<e>{END}")
    Unmarked(text='<e>a<e>', own=[(0, 3)], quoted=[(4, 7)], places=[0, 4, 6, 10])
    """
    parts = MARKS.split(text)  # texts at even places, marks at odd ones
    texts, kinds = parts[::2], parts[1::2]
    ends = list(itertools.accumulate(map(len, texts)))
    own: list[Span] = []
    quoted: list[Span] = []
    for before, after, start, stop in zip(kinds, kinds[1:], ends, ends[1:], strict=False):
        if before == OWN and after == OTHER:
            if own and own[-1][1] == start:
                start = own.pop()[0]
            own.append((start, stop))
        elif before == BEGIN and after == END:
            quoted.append((start, stop))
    return Unmarked("".join(texts), own, quoted, [end + before for before, end in enumerate(ends[:-1])])
