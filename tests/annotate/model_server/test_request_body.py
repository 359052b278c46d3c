"""A request depends on the text and the settings alone, and a long text is cut as other classifiers cut it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datakit.annotate.fasttext.pieces import PIECES, pieces_of
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.annotate.model_server.request_body import BETWEEN, most_tokens, request_body, sent_text

CONFIG = ModelServerConfig("https://host/v1", "m", "Rate {text} {now}", number=(0, 5))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=600), st.integers(1024, 2000))
def test_pieces_are_those_of_the_other_classifiers(text: str, max_bytes: int) -> None:
    data = (text * 20).encode()
    starts, stops = np.empty(PIECES, np.int64), np.empty(PIECES, np.int64)
    count = pieces_of(np.frombuffer(data, np.uint8), 0, len(data), max_bytes, starts, stops)
    pieces = [data[start:stop].decode() for start, stop in zip(starts[:count], stops[:count], strict=True)]
    assert sent_text(data, max_bytes) == BETWEEN.join(pieces)


def test_body() -> None:
    body = json.loads(request_body(replace(CONFIG, system="S", parameters={"seed": 1}), "a {text} b"))
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Rate a {text} b {now}"}]
    assert body == {"model": "m", "messages": messages, "max_tokens": 64, "seed": 1}


def test_structured_answers_are_requested_with_their_schema() -> None:
    config = replace(CONFIG, number=(), fields={"score": "integer"}, structured=True)
    found = json.loads(request_body(config, "x"))["response_format"]["json_schema"]
    assert found["schema"]["properties"] == {"score": {"type": "integer"}} and found["strict"]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=100, max_size=3000))
def test_no_request_has_more_bytes_of_text_than_the_bound_of_its_tokens(text: str) -> None:
    config = replace(CONFIG, max_bytes=1024)
    body = json.loads(request_body(config, sent_text(text.encode(), config.max_bytes)))
    assert len(body["messages"][0]["content"].encode()) < most_tokens(config)
