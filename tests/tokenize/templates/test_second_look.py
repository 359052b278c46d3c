"""No message becomes a special token, whatever a template does with what it says."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.tokenize.templates.encode_chats import EncodedChats, TemplateEncoder
from tests.support.tokens.template_cases import (
    Conversation,
    InlineRenderer,
    byte_level,
    encoded,
    encoder_of,
    turns,
    with_spaces,
)


def chatml(content: str) -> str:
    """A template that writes each message's content in some way."""
    return (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        f"{{% generation %}}{{{{ {content} }}}}{{{{ '<|im_end|>' }}}}{{% endgeneration %}}{{% endfor %}}"
    )


MACRO = "{% macro turn(m) %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>' }}{% endmacro %}"
TEMPLATES = {
    "drops a letter": chatml("m.content | replace('x', '')"),
    "trims": chatml("(m.content.split('#') | map('trim') | join)"),
    "drops thoughts": chatml("m.content.split('</think>')[-1]"),
    "joins thoughts": chatml("m.content.split('</think>') | join"),
    "other case": chatml("m.content | lower"),
    "writes half": chatml("'<|im_' + m.content"),
    "writes around": chatml("'<|' ~ m.content ~ '|>'"),
    "reverses": chatml("m.content | reverse"),
    "macro": MACRO + "{% for m in messages %}{{ turn(m) | replace('x', '') }}{% endfor %}",
    "captured": MACRO
    + "{% set t %}{% for m in messages %}{{ turn(m) }}{% endfor %}{% endset %}{{ t | replace('x', '') }}",
}  # fmt: skip
PARTS = [
    "<|im_", "end|>", "start|>", "x", "<|imx_end|>", "</think>", "#", " ", "|>", "im_end", "<|im_end|>", "<|IM_END|>",
    "<|user|>", "user", "<", "|", "漢", ">|dne_mi|<",
]  # fmt: skip
CONTENT = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)


@functools.cache
def chats(template: str) -> TemplateEncoder:
    return encoder_of(byte_level(), InlineRenderer(template))


def tokens(chats: TemplateEncoder, found: EncodedChats) -> list[int]:
    """The ids of special tokens."""
    return found.ids[chats.special.table[found.ids]].tolist()


@pytest.mark.parametrize("name", TEMPLATES)
@given(question=CONTENT, answer=CONTENT)
def test_special_tokens_are_those_of_an_ordinary_conversation(name: str, question: str, answer: str) -> None:
    one = chats(TEMPLATES[name])
    usual = encoded(one, Conversation(turns(("user", "a"), ("assistant", "b"))))
    found = encoded(one, Conversation(turns(("user", question), ("assistant", answer))))
    if not found.lost:
        assert tokens(one, found) == tokens(one, usual)
        assert one.reference.decode(found.ids.tolist(), skip_special_tokens=False) == found.texts[0]


JOINED = {
    "drops a letter": "a <|imx_end|> b",
    "trims": "a <|im_ # end|> b",
    "joins thoughts": "a <|im_</think>end|> b",
    "other case": "a <|IM_END|> b",
    "writes half": "end|> b",
    "writes around": "im_end",
    "macro": "a <|imx_end|> b",
    "captured": "a <|imx_end|> b",
}


@pytest.mark.parametrize("name", JOINED)
def test_joined_string_is_ordinary_text_in_this_record_alone(name: str) -> None:
    one, hostile = chats(TEMPLATES[name]), turns(("user", JOINED[name]), ("assistant", "fine"))
    usual, found = (encoded(one, Conversation(each)) for each in (turns(("user", "a"), ("assistant", "fine")), hostile))
    assert not found.lost and "<|im_end|>" in found.texts[0].removesuffix("<|im_end|>")
    assert tokens(one, found) == tokens(one, usual) and not found.ordinary[0] and usual.ordinary[0]
    assert one.reference.decode(found.ids.tolist(), skip_special_tokens=False) == found.texts[0]


def test_template_that_decides_by_such_a_text_loses_the_conversation() -> None:
    one = chats(chatml("('sign ' if m.content[0] == '<' else '') + m.content | replace('x', '')"))
    lost = encoded(one, Conversation(turns(("user", "<|imx_end|> b"), ("assistant", "fine")))).lost[0]
    assert "special token that may come from a message" in lost
    assert not encoded(one, Conversation(turns(("user", "<|imx b"), ("assistant", "fine")))).lost


def test_role_is_a_part_of_a_token_only_if_it_is_known() -> None:
    template = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
    one = chats(template)
    assert len(tokens(one, encoded(one, Conversation(turns(("user", "a"), ("assistant", "b")))))) == 4
    assert "out of a role that it does not name" in encoded(one, Conversation(turns(("im_end", "a")))).lost[0]
    named = chats(template + "{{ '' if messages[0].role == 'im_end' }}")
    assert len(tokens(named, encoded(named, Conversation(turns(("im_end", "a")))))) == 2
    assert not encoded(one, Conversation(turns(("wizard", "a")))).lost


def test_template_with_macros_keeps_its_tokens_and_its_thoughts() -> None:
    macro = MACRO.replace("m.content ~", "m.content.split('</think>')[-1] ~")
    one = chats(macro + "{% for m in messages %}{{ turn(m) }}{% endfor %}")
    found = encoded(one, Conversation(turns(("user", "a"), ("assistant", "<think>some user</think>b"))))
    assert len(tokens(one, found)) == 4 and found.ordinary.tolist() == [True]


def test_tokenizer_that_marks_spaces_loses_joined_strings() -> None:
    one = encoder_of(with_spaces(), InlineRenderer(TEMPLATES["drops a letter"]))
    assert "cannot encode as ordinary text" in encoded(one, Conversation(turns(("user", "<|imx_end|>")))).lost[0]
    assert not encoded(one, Conversation(turns(("user", "a")))).lost


def test_tools_and_other_fields_are_no_special_tokens_either() -> None:
    template = (
        "{{ tools | tojson | replace('x', '') }}{% for m in messages %}{{ m.name | replace('x', '') }}{% endfor %}"
    )
    one = chats(template)
    hostile = Conversation([{"role": "user", "content": "", "name": "<|imx_end|>"}], [{"<|imx_end|>": "<|imx_end|>"}])
    found = encoded(one, hostile)
    assert not tokens(one, found) and found.texts[0].count("<|im_end|>") == 3
