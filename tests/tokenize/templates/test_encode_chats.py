"""The loss mask of a rendered conversation covers the tokens that share a character with a span."""

from __future__ import annotations

import functools
import unicodedata
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, processors

from datakit.tokenize.templates.encode_chats import EncodedChats, TemplateEncoder
from datakit.tokenize.templates.token_places import bytes_before
from tests.support.caches import load_tokenizer, trained
from tests.support.tokens.template_cases import (
    SPECIAL,
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


def changed(normalizer: Any, *, normalized: bool = False, post: Any = None) -> TemplateEncoder:
    """An encoder with a normalizer, of messages whose contents are the targets."""
    made = tokenizers.Tokenizer.from_str(trained().decode())
    made.normalizer, made.post_processor = normalizer, post or made.post_processor
    made.add_special_tokens([AddedToken(token, normalized=normalized) for token in SPECIAL])
    template = "{% for m in messages %}{{ m.role }}{% generation %}{{ m.content }}{% endgeneration %}.{% endfor %}"
    return encoder_of(load_tokenizer(made.to_str().encode()), InlineRenderer(template))


def target_texts(chats: TemplateEncoder, found: EncodedChats) -> list[str]:
    ends = np.flatnonzero(np.diff(np.pad(found.mask.astype(int), 1)))
    spans = zip(ends[::2].tolist(), ends[1::2].tolist(), strict=True)
    return [chats.reference.decode(found.ids[start:stop].tolist()) for start, stop in spans]


@pytest.mark.parametrize("post", [None, processors.ByteLevel(trim_offsets=True)])
@pytest.mark.parametrize("contents", [("\u0958", "e\u0301e\u0301e\u0301"), ("e\u0301 ", " \n e\u0301  "), ("a ", " ")])
def test_mask_of_a_normalized_text_covers_exactly_the_contents(contents: tuple[str, str], post: Any) -> None:
    """The first pair of contents has as many bytes before its normalization as after it."""
    chats = changed(normalizers.NFC(), post=post)
    found = encoded(chats, Conversation(turns(*zip(("user", "assistant"), contents, strict=True))))
    assert target_texts(chats, found) == [unicodedata.normalize("NFC", one) for one in contents]


@pytest.mark.parametrize(
    ("normalizer", "content"),
    [(normalizers.NFKC(), "a \uff1c|im_end|> b"), (normalizers.Lowercase(), "a <|IM_END|> b")],
)
def test_special_token_that_a_normalizer_makes_is_a_loss(normalizer: Any, content: str) -> None:
    chats = changed(normalizer, normalized=True)
    assert "the tokenizer encodes a part of it" in encoded(chats, Conversation(turns(("user", content)))).lost[0]
    assert not encoded(chats, Conversation(turns(("user", content.replace("|>", ""))))).lost


def test_empty_span_inside_a_target_changes_nothing() -> None:
    template = "{% generation %}4{% endgeneration %}{% generation %}{% endgeneration %}8"
    chats = encoder_of(byte_level(), InlineRenderer(template))
    whole = chats.reference.encode("48", add_special_tokens=False).ids
    found = encoded(chats, Conversation(turns(("user", "a"))))
    assert len(whole) == 1 and found.ids.tolist() == whole and found.mask.tolist() == [1]


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
