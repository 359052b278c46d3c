"""The loss mask of a rendered conversation covers the tokens that share a character with a span."""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.tokenize.templates.encode_chats import TemplateEncoder, bytes_before
from tests.support.tokens.template_cases import (
    TOKENIZERS,
    Conversation,
    InlineRenderer,
    byte_level,
    encoded,
    encoder_of,
    stored_templates,
    turns,
    with_spaces,
)

PARTS = [*"ab 漢é\n\t", "👩", "\u0301", "<|im_end|>", "</s>", "<think>"]
CONTENT = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)


@functools.cache
def encoder(kind: str = "bytes.json", library: str = "auto") -> TemplateEncoder:
    return encoder_of(TOKENIZERS[kind](), InlineRenderer(stored_templates()["chatml.jinja"]), library)


@given(CONTENT, CONTENT)
def test_mask_covers_exactly_the_answers(question: str, answer: str) -> None:
    chats = encoder()
    found = encoded(chats, Conversation(turns(("user", question), ("assistant", answer))))
    sizes = chats.sizes
    assert sizes is not None and not found.lost
    data, places = found.texts[0].encode(), np.cumsum(sizes[found.ids])
    assert places[-1] == len(data)
    targets = b"".join(
        data[stop - sizes[number] : stop]
        for number, stop, target in zip(found.ids.tolist(), places.tolist(), found.mask.tolist(), strict=True)
        if target
    )
    assert targets.decode(errors="ignore").lstrip("\n") == f"{answer}<|im_end|>".lstrip("\n")


@given(CONTENT)
def test_answer_cannot_end_its_turn(answer: str) -> None:
    chats = encoder()
    ends = chats.reference.token_to_id("<|im_end|>")
    found = encoded(chats, Conversation(turns(("user", "a"), ("assistant", answer))))
    assert (found.ids == ends).sum() == 2
    assert found.ids[found.mask > 0][-1] == ends


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_sizes_and_the_reference_state_the_same_places(kind: str) -> None:
    fast, slow = encoder(kind), encoder_of(TOKENIZERS[kind](), encoder().renderer, "tokenizers")
    slow.sizes = None  # the reference states the places
    for content in ("a  b", "漢字\n\n👩", " é ", ""):
        conversation = Conversation(turns(("user", content), ("assistant", content)))
        one, other = (encoded(each, conversation) for each in (fast, slow))
        assert (one.ids.tolist(), one.mask.tolist()) == (other.ids.tolist(), other.mask.tolist())


def test_tokenizer_that_marks_spaces_loses_conversations_with_special_strings() -> None:
    chats = encoder_of(with_spaces(), encoder().renderer)
    messages = [turns(("user", "a <s> b"), ("assistant", "c")), turns(("user", "a"), ("assistant", "c"))]
    found = chats.encode(pa.array(messages), None, "here")
    assert list(found.lost) == [0] and "cannot encode as ordinary text" in found.lost[0]
    assert found.rows.tolist() == [1]


def test_value_that_json_lacks_is_a_loss() -> None:
    message = {"role": "user", "content": "a", "picture": b"bytes"}
    assert "neither text" in encoder().encode(pa.array([[message]]), None, "here").lost[0]


@given(st.text())
def test_bytes_before_counts_utf_8(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert bytes_before(text).tolist() == [len(text[:end].encode()) for end in range(len(text) + 1)]


def test_byte_level_tokenizers_have_sizes() -> None:
    assert encoder_of(byte_level(), encoder().renderer).sizes is not None
    assert encoder_of(with_spaces(), encoder().renderer).sizes is None
