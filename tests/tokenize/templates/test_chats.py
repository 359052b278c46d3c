"""A template gets what the record has, and no message can write a special token."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.errors import ColumnError
from datakit.tokenize.templates.chats import Chat, chats, serializable
from datakit.tokenize.templates.marks import BEGIN, END, OTHER, OWN, unmarked
from datakit.tokenize.templates.special_strings import SpecialStrings

SPECIAL = SpecialStrings(["<e>", "<e><e>", "</s>"])
texts = st.lists(st.sampled_from(["<e>", "</s>", "<", "e>", "a", "漢", "s>"]), max_size=12).map("".join)


def read(messages: Any, tools: Any = None) -> Chat:
    (found,) = chats(pa.array([messages]), None if tools is None else pa.array([tools]), SPECIAL, "here")
    return found


def test_nulls_are_left_out_at_any_depth() -> None:
    column = pa.array(
        [
            [{"role": "user", "content": "a", "calls": None}],
            [{"role": "assistant", "content": None, "calls": [{"x": 1, "y": None}]}],
        ]
    )
    first, second = chats(column, None, SPECIAL, "here")
    assert first.messages == [{"role": "user", "content": "a"}]
    assert second.messages == [{"role": "assistant", "calls": [{"x": 1}]}]


def test_tools_are_a_list_or_a_string_of_json_which_keeps_its_order() -> None:
    message = [{"role": "user", "content": "a"}]
    assert read(message, [{"name": "f", "strict": None}]).tools == [{"name": "f"}]
    assert list((read(message, '[{"b": 1, "a": 2}]').tools or [])[0]) == ["b", "a"]
    assert read(message, "").tools is None
    for wrong in ("{", '{"a": 1}', "7"):
        assert read(message, wrong).mistake.startswith("its tools are not a list")


@pytest.mark.parametrize("messages", [None, [], [None], [{"role": None, "content": "a"}]])
def test_conversation_without_messages_or_roles_is_a_mistake(messages: Any) -> None:
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    (found,) = chats(pa.array([messages], kind), None, SPECIAL, "here")
    assert found.mistake in ("it has no messages", "it has a message without a role")


def test_other_columns_are_refused() -> None:
    for column in (pa.array(["a"]), pa.array([["a"]]), pa.array([[{"content": "a"}]])):
        with pytest.raises(ColumnError, match="not a list of structures with a role"):
            list(chats(column, None, SPECIAL, "here"))


@given(texts)
def test_special_strings_stand_between_marks(content: str) -> None:
    chat = read([{"role": "user", "content": content}])
    made = unmarked(chat.messages[0]["content"])
    assert made.text == content
    assert made.quoted == [found.span() for found in re.finditer("<e><e>|<e>|</s>", content)]
    assert chat.marked == bool(made.quoted)


def test_record_with_marks_is_a_mistake() -> None:
    for mark in (BEGIN, END, OWN, OTHER):
        assert "private-use characters" in read([{"role": "user", "content": f"{mark}a"}]).mistake


def test_names_and_maps_cannot_write_a_special_token_either() -> None:
    message = [{"role": "user", "content": "a"}]
    assert read(message, '[{"</s>": {"a</s>": 1}}]').tools == [{f"{BEGIN}</s>{END}": {f"a{BEGIN}</s>{END}": 1}}]
    kind = pa.struct([("role", pa.string()), ("more", pa.map_(pa.string(), pa.string()))])
    column = pa.array([[{"role": "user", "more": [("a", "</s>")]}]], pa.list_(kind))
    (found,) = chats(column, None, SPECIAL, "here")
    assert found.marked
    assert found.messages == [{"role": "user", "more": [["a", f"{BEGIN}</s>{END}"]]}]


def test_tools_from_a_stranger_cost_at_most_their_conversation() -> None:
    message = [{"role": "user", "content": "a"}]
    for depth in (2_000, 200_000):
        assert read(message, "[" * depth + "]" * depth).mistake == "it is nested too deeply"
    assert not serializable(read(message, r'["\ud800"]'))
