"""Tests of rendering conversations."""

from __future__ import annotations

import pyarrow as pa
import pytest

from datakit.errors import RecipeError
from datakit.tokenize.chat import chat_format, with_text


def conversation(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def test_chat_format_is_a_name_or_a_template() -> None:
    assert chat_format("simple").head == "<|{role}|>\n"
    assert (chat_format("[{role}] {content};").head, chat_format("[{role}] {content};").tail) == ("[{role}] ", ";")
    with pytest.raises(RecipeError, match="did you mean 'chatml'"):
        chat_format("chatlm")


def test_text_of_a_conversation_is_its_messages() -> None:
    batch = pa.RecordBatch.from_pylist([{"messages": conversation(("user", "hi"), ("assistant", 'say "no"'))}])
    assert with_text(batch).column("text").to_pylist() == ['["user", "hi"]\n["assistant", "say \\"no\\""]']
