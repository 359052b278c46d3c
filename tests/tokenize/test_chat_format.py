"""Tests of chat formats and of their markers."""

from __future__ import annotations

import pytest

from datakit.errors import RecipeError, TokenizerError
from datakit.tokenize.chat_format import ROLES, chat_format
from tests.support.tokens.chat_tokens import CHATML, frames_of


def test_chat_format_is_a_name_or_a_template() -> None:
    assert chat_format("simple").head == "<|{role}|>\n"
    assert (chat_format("[{role}] {content};").head, chat_format("[{role}] {content};").tail) == ("[{role}] ", ";")
    with pytest.raises(RecipeError, match="did you mean 'chatml'"):
        chat_format("chatlm")


@pytest.mark.parametrize(
    ("form", "special", "plain"),
    [
        ("simple", (), ()),
        ("simple", CHATML, ()),
        ("simple", ("<|user|>",), ()),
        ("chatml", (), ()),
        ("chatml", (), CHATML),
        ("chatml", ("<|im_start|>",), ()),
        ("[{role}] {content}\n", CHATML, ()),
        ("<|im_start|>{role} {content};", CHATML, ()),
    ],
)
def test_format_whose_markers_are_not_special_tokens_is_refused(
    form: str, special: tuple[str, ...], plain: tuple[str, ...]
) -> None:
    with pytest.raises(TokenizerError, match="a message's content could imitate"):
        frames_of(form, *special, plain=plain)


def test_roles_are_those_whose_markers_are_special_tokens() -> None:
    assert frames_of("chatml", *CHATML).roles == ROLES
    assert frames_of("simple", "<|user|>", "<|assistant|>").roles == ("user", "assistant")
    frames = frames_of("<|im_start|>{role} {content}\n", *CHATML)
    assert frames.markers.tolist() == [400]
    assert frames.targets.tolist() == [role == "assistant" for role in ROLES]
