"""Finds out which strings of special tokens in a rendered text come from the conversation.

A template can change what a message says: it can drop characters, cut a text apart, or join a message to its own text.
The result may be the string of a special token that stood in no message (`<|im_` and `end|>`), and `tokenizers` would
turn it into the token. So each such string in the rendered text must be one that the template itself wrote. Most are,
as their marks show (own_text.py), and then the rendering is used as it is.

Otherwise, the conversation is rendered a second time, with other characters in place of those that the strings of
special tokens consist of. If the two texts differ only where the second one has such a character, a string that is the
same in both is the template's. One that has changed is the conversation's, and is encoded as ordinary text. If the
texts differ in other ways, the template decides by what a message says, and the conversation is left out.

So that templates which look for their own strings in a message (`</think>`) write the same again, some texts are kept:
names of fields, roles and types that equal a string of the template, and such strings within other values if they are
neither plain words nor parts of a special token's string.

Cost: nothing, unless a string is neither marked as the template's own nor as quoted; then, one more rendering.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from functools import cached_property
from typing import Any

from datakit.tokenize.templates.environment import OutputError, Template
from datakit.tokenize.templates.marks import Span, Unmarked
from datakit.tokenize.templates.own_text import ROLES
from datakit.tokenize.templates.special_strings import SpecialStrings

SHIFT = 0xF0000  # private-use characters begin here
SHORTEST_KEPT = 3
STRUCTURE = ("role", "type")  # fields whose values name kinds of messages and of their parts
UNCLEAR = (
    "writes the string of a special token that may come from a message, and another text if the messages do; change "
    "the template so that it writes its special tokens outside of macros, filters and captured blocks"
)
OF_ROLE = "makes a special token's string out of a role that it does not name; rename the role in a transform"


class UnclearError(Exception):
    """It cannot be told whether the template or the conversation wrote a special token's string."""


class SecondLook:
    """Compares a rendering with one whose conversation says something else."""

    def __init__(self, template: Template, special: SpecialStrings) -> None:
        self._template, self._special = template, special

    def foreign(self, made: Unmarked, messages: list[Any], tools: list[Any] | None) -> list[Span]:
        """Return the spans of a rendered text that are to be encoded as ordinary text: those of special tokens'
        strings that come from the conversation. Raises UnclearError if it cannot be told.
        """
        quoted, suspect = list(made.quoted), list[Span]()
        for span in self._special.places(made.text):
            if not _inside(span, made.own) and not _inside(span, made.quoted):
                suspect.append(span)
        if suspect:
            quoted += self._changed(made, suspect, messages, tools)
        return _without(sorted(quoted), made.own)

    def _changed(self, made: Unmarked, suspect: list[Span], messages: list[Any], tools: Any) -> list[Span]:
        """Return the suspect spans that differ in a rendering of other messages."""
        text, other = made.text, self._second(messages, tools)
        if len(text) != len(other) or not all(
            one == two or SHIFT <= ord(two) <= SHIFT + 0xFFFF for one, two in zip(text, other, strict=True)
        ):
            raise UnclearError(UNCLEAR)
        changed = [(start, stop) for start, stop in suspect if text[start:stop] != other[start:stop]]
        roles = {str(one.get("role")) for one in messages} - self._kept
        if any(role in text[start:stop] for start, stop in changed for role in roles):
            raise UnclearError(OF_ROLE)
        return changed

    def _second(self, messages: list[Any], tools: Any) -> str:
        try:
            return self._template.render(self._shifted(messages), self._shifted(tools))
        except (MemoryError, OutputError):
            raise
        except Exception as error:
            raise UnclearError(UNCLEAR) from error

    def _shifted(self, value: Any, field: str = "") -> Any:
        """Return a value with other characters, at any depth. field: the name of the value's field."""
        if isinstance(value, str):
            return value if field in STRUCTURE and value in self._kept else self._shifted_text(value)
        if isinstance(value, dict):
            kept = self._template.constants
            return {
                name if name in kept else self._shifted_text(name): self._shifted(one, name)
                for name, one in value.items()
            }
        return [self._shifted(one, field) for one in value] if isinstance(value, list) else value

    def _shifted_text(self, text: str) -> str:
        places = [0, *(place for found in self._strings.finditer(text) for place in found.span()), len(text)]
        parts = [text[start:stop] for start, stop in itertools.pairwise(places)]
        return "".join(part if odd % 2 else part.translate(self._table) for odd, part in enumerate(parts))

    @cached_property
    def _kept(self) -> frozenset[str]:
        return self._template.constants | {*ROLES}

    @cached_property
    def _strings(self) -> re.Pattern[str]:
        """The pattern of the template's strings that are kept within a value."""
        special = self._special.strings
        kept = (
            one for one in self._template.constants
            if len(one) >= SHORTEST_KEPT and not one.replace("_", "").isalnum() and not one.isspace()
            and not any(one in string or string in one for string in special)
        )  # fmt: skip
        return re.compile("|".join(map(re.escape, sorted(kept, key=lambda one: (-len(one), one)))) or "(?!)")

    @cached_property
    def _table(self) -> dict[int, int]:
        """The characters that stand for those of special tokens' strings, and for their other cases."""
        letters = {letter for string in self._special.strings for letter in string}
        cases = letters | {case for letter in letters for case in (letter.lower(), letter.upper())}
        codes = [ord(one) for one in cases if len(one) == 1 and not one.isspace()]
        return {code: SHIFT + code for code in codes if code < 0xFFFE}


def _inside(span: Span, others: list[Span]) -> bool:
    """Return True if a span lies in one of others, which are sorted and do not overlap."""
    last = bisect_right(others, span[0], key=lambda one: one[0]) - 1
    return last >= 0 and span[1] <= others[last][1]


def _without(spans: list[Span], own: list[Span]) -> list[Span]:
    """Return sorted spans without the parts that the template itself wrote. Spans may overlap; the result does not."""
    found: list[Span] = []
    for start, stop in spans:
        place = max(start, found[-1][1]) if found else start
        for first, last in own:
            if place < first < stop:
                found.append((place, first))
            if first < stop and last > place:
                place = last
        if place < stop:
            found.append((place, stop))
    return found
