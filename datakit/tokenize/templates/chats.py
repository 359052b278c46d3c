"""Reads the conversations of a batch for a chat template, and marks the strings of special tokens in their contents.

A template gets what the record has: every field of each message, and the column of tools. A null is left out, because
Arrow does not tell a null from a field that only other records have. Tools may also be a string of JSON, which keeps
the order of the keys.

Contents are untrusted: the string of a special token in a message must not end the message's turn. Such a string is
put between two marks before the template is rendered. After that, it is encoded as ordinary text, and the marks are
dropped. `transformers` does the same with `sanitize_control_tokens=True`. Conversations without such strings are
rendered as they are.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from datakit.errors import ColumnError

BEGIN, END = MARKS = ("\U0010fdd0", "\U0010fdd1")  # private-use characters, which texts do not contain
_MARK = re.compile(f"[{BEGIN}{END}]")


@dataclass(frozen=True)
class Chat:
    """A conversation for a template. marked: special tokens' strings in it stand between marks. mistake: why it cannot
    be rendered, or "".
    """

    messages: list[Any]
    tools: list[Any] | None = None
    marked: bool = False
    mistake: str = ""


class SpecialStrings:
    """Finds the strings of special tokens in values, and marks them."""

    def __init__(self, strings: Iterable[str]) -> None:
        longest_first = sorted((string for string in strings if string), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def occur_in(self, value: Any) -> bool:
        """Return True if a string in a value of JSON may contain the string of a special token."""
        return any(self._pattern.search(text) for text in _strings(value))

    def marked(self, value: Any) -> Any:
        """Return a value with marks around these strings, at any depth."""
        if isinstance(value, str):
            return self._pattern.sub(lambda found: f"{BEGIN}{found.group()}{END}", value)
        if isinstance(value, dict):
            return {self.marked(name): self.marked(one) for name, one in value.items()}
        return [self.marked(one) for one in value] if isinstance(value, list) else value


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in value.items():  # a template may write the names, too
            yield from (name, *_strings(one))
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)


def chats(messages: pa.Array, tools: pa.Array | None, special: SpecialStrings, place: str) -> Iterator[Chat]:
    """Yield the conversations of a column of messages. tools: the column of tools, if there is one. place: the file's
    name in error messages. Raises ColumnError if the column does not hold lists of structures with a role.
    """
    kind = messages.type
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not listed or not pa.types.is_struct(kind.value_type) or kind.value_type.get_field_index("role") < 0:
        raise ColumnError(f"{place}: messages are {kind}, not a list of structures with a role")
    others = tools.to_pylist() if tools is not None else [None] * len(messages)
    for conversation, more in zip(messages.to_pylist(), others, strict=True):
        try:
            yield _chat(conversation, more, special)
        except RecursionError:
            yield Chat([], mistake="it is nested too deeply")


def _chat(conversation: list[Any] | None, tools: Any, special: SpecialStrings) -> Chat:
    found = [_without_nulls(one) for one in conversation or []]
    if not found:
        return Chat([], mistake="it has no messages")
    if not all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in found):
        return Chat([], mistake="it has a message without a role")
    try:
        made = _tools(tools)
    except ValueError:
        return Chat([], mistake="its tools are not a list, nor a string of JSON that holds one")
    if not special.occur_in(found) and not special.occur_in(made):
        return Chat(found, made)
    if any(_MARK.search(text) for text in (*_strings(found), *_strings(made))):
        return Chat([], mistake="it holds the string of a special token and the private-use characters that mark it")
    return Chat(special.marked(found), special.marked(made), marked=True)


def _tools(value: Any) -> list[Any] | None:
    """Return a conversation's tools; None if it has none. Raises ValueError."""
    if isinstance(value, str) and value.strip():
        value = json.loads(value)
    value = _without_nulls(value or None)
    if value is not None and not isinstance(value, list):
        raise ValueError
    return value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    # Arrow's maps are lists of tuples
    return [_without_nulls(one) for one in value] if isinstance(value, (list, tuple)) else value


def serializable(chat: Chat) -> bool:
    """Return True if JSON in UTF-8 can express a conversation: it has no dates, bytes, decimals and lone surrogates."""
    try:
        json.dumps([chat.messages, chat.tools], ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


class Piece(msgspec.Struct, frozen=True):
    """A part of a rendered text. as_text: special tokens' strings in it are ordinary text."""

    text: str
    as_text: bool


def pieces(text: str, spans: list[tuple[int, int]]) -> tuple[list[Piece], list[tuple[int, int]]]:
    """Return the parts of a rendered text whose conversation was marked, and the spans without the marks. A mark that
    the template has separated from its partner ends a part, so no special token's string goes across it.
    """
    marks = [found.start() for found in _MARK.finditer(text)]
    found = list[Piece]()
    for before, after in itertools.pairwise([-1, *marks, len(text)]):
        if after > before + 1:
            whole = text[before : before + 1] == BEGIN and text[after : after + 1] == END
            found.append(Piece(text[before + 1 : after], whole))
    moved = [sum(mark < place for mark in marks) for span in spans for place in span]
    places = [place for span in spans for place in span]
    left = [place - less for place, less in zip(places, moved, strict=True)]
    return found, list(zip(left[::2], left[1::2], strict=True))
