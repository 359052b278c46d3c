"""Reads the conversations of a batch for a chat template, and marks the strings of special tokens in their contents.

A template gets what the record has: every field of each message, and the column of tools. A null is left out, because
Arrow does not tell a null from a field that only other records have. Tools may also be a string of JSON, which keeps
the order of the keys.

Contents are untrusted: the string of a special token in a message must not end the message's turn. Such a string is
put between two marks before the template is rendered. After that, it is encoded as ordinary text, and the marks are
dropped. `transformers` does the same with `sanitize_control_tokens=True`. Conversations without such strings are
rendered as they are. Strings that come into being while a message is rendered are found later (second_look.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from datakit.errors import ColumnError
from datakit.tokenize.templates.marks import MARK
from datakit.tokenize.templates.special_strings import SpecialStrings, strings_of


@dataclass(frozen=True)
class Chat:
    """A conversation for a template. marked: special tokens' strings in it stand between marks. mistake: why it cannot
    be rendered, or "".
    """

    messages: list[Any]
    tools: list[Any] | None = None
    marked: bool = False
    mistake: str = ""


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
    if any(MARK.search(text) for text in (*strings_of(found), *strings_of(made))):
        return Chat([], mistake="it holds private-use characters with which datakit marks texts (U+10FDD0 to U+10FDD3)")
    if not special.occur_in(found) and not special.occur_in(made):
        return Chat(found, made)
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
