"""The assistant's turns are found by rendering beginnings of a conversation, or not at all."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from datakit.tokenize.templates.child import turns
from tests.support.tokens.template_cases import InlineRenderer, stored_templates

MARKED = InlineRenderer(stored_templates()["tulu.jinja"])
BARE = InlineRenderer(MARKED.template.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", ""))
roles = st.lists(st.sampled_from(["user", "assistant", "system"]), min_size=1, max_size=6)


def messages_of(names: list[str]) -> list[dict[str, Any]]:
    return [{"role": name, "content": f"{name} {number}"} for number, name in enumerate(names)]


@given(roles)
def test_turns_are_the_contents_and_ends_of_the_assistant(names: list[str]) -> None:
    messages = messages_of(names)

    def render(count: int, prompt: bool) -> str:
        return "".join(f"[{one['role']}:{one['content']}]" for one in messages[:count]) + "[assistant:" * prompt

    text = render(len(messages), False)
    found = turns(render, messages, text)
    assert found is not None
    assert [text[start:stop] for start, stop in found] == [
        f"{one['content']}]" for one in messages if one["role"] == "assistant"
    ]


@given(roles)
def test_turns_equal_the_generation_tags_of_the_same_template(names: list[str]) -> None:
    assume(("assistant", "assistant") not in itertools.pairwise(names))  # the template then writes a line break less
    marked, found = MARKED, BARE
    messages = messages_of(names)
    assert found.answer["has_spans"] is False
    assert found.render(messages, None) == marked.render(messages, None)


def test_template_that_writes_beginnings_differently_has_no_turns() -> None:
    for name in ("phi3.jinja", "qwen3.jinja"):
        renderer = InlineRenderer(stored_templates()[name])
        messages = messages_of(["user", "assistant", "user", "assistant"])
        lost = renderer.render(messages, None)
        assert "the assistant's turns cannot be found" in lost.reason, name  # pyright: ignore
