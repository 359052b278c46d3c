"""An answer gives attributes only if the whole answer has exactly the required form."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.annotate.model_server.answer_format import AnswerError, AnswerFormat

NUMBER = AnswerFormat.of([0, 5], [], {})
LABELS = AnswerFormat.of([], ["news", "fiction"], {})
FIELDS = AnswerFormat.of(
    [], [], {"quality": "integer", "share": "number", "spam": "boolean", "why": "string", "topic": ["a", "b"]}
)
OBJECT = {"quality": 3, "share": 0.5, "spam": False, "why": "", "topic": "a"}


@pytest.mark.parametrize(("answer", "score"), [("3", 3.0), (" 4.25\n", 4.25), ("0", 0.0), ("5.0", 5.0), ("-0", 0.0)])
def test_number(answer: str, score: float) -> None:
    assert NUMBER.parse(answer) == {"score": score}


@pytest.mark.parametrize(
    "answer", ["", "three", "3 points", "Score: 3", "3.", ".5", "+3", "1e0", "5.1", "-1", "٣", "nan", "3\n4", "0x1"]
)
def test_what_is_not_exactly_a_number_of_the_range_is_no_answer(answer: str) -> None:
    with pytest.raises(AnswerError):
        NUMBER.parse(answer)


def test_label() -> None:
    assert LABELS.parse("fiction\n") == {"label": "fiction"}
    for answer in ("Fiction", "fiction.", "news, fiction", "", '"news"'):
        with pytest.raises(AnswerError, match="none of the labels"):
            LABELS.parse(answer)


def test_object() -> None:
    assert FIELDS.parse(json.dumps(OBJECT)) == OBJECT
    assert FIELDS.parse(json.dumps(OBJECT | {"share": 1})) == OBJECT | {"share": 1.0}
    assert FIELDS.schema.field("topic").type == pa.string()


@pytest.mark.parametrize(
    "change",
    [{"quality": 3.0}, {"quality": True}, {"quality": 2**63}, {"quality": "3"}, {"share": "1"}, {"share": True},
     {"spam": 0}, {"spam": None}, {"why": 1}, {"why": "x" * 5000}, {"topic": "c"}, {"topic": ["a"]}, {"more": 1}],
    ids=str,
)  # fmt: skip
def test_field_of_another_type_or_name_is_no_answer(change: dict[str, Any]) -> None:
    with pytest.raises(AnswerError):
        FIELDS.parse(json.dumps(OBJECT | change))


@pytest.mark.parametrize(
    "answer",
    ["{}", "[]", "3", "null", "", "{", json.dumps(OBJECT)[:-1], f"```json\n{json.dumps(OBJECT)}\n```",
     '{"quality": 1, "quality": 2, "share": 1, "spam": true, "why": "", "topic": "a"}',
     '{"quality": 1, "share": NaN, "spam": true, "why": "", "topic": "a"}',
     '{"quality": 1, "share": 1e999, "spam": true, "why": "", "topic": "a"}',
     '{"quality": 1, "share": 1, "spam": true, "why": "\\ud800", "topic": "a"}', "[" * 100_000],
    ids=range(13),
)  # fmt: skip
def test_what_is_not_exactly_the_object_is_no_answer(answer: str) -> None:
    with pytest.raises(AnswerError):
        FIELDS.parse(answer)


@given(st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_any_answer_is_parsed_or_refused_and_fits_the_columns(answer: str) -> None:
    for form in (NUMBER, LABELS, FIELDS):
        try:
            found = form.parse(answer)
        except AnswerError as error:
            assert len(answer) < 20 or answer not in str(error), "a message quotes no answer"
        else:
            assert pa.Table.from_pylist([found], schema=form.schema).num_rows == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (([], [], {}), "exactly one"),
        (([0, 1], ["a"], {}), "exactly one"),
        (([0], [], {}), "least and the greatest"),
        (([1, 0], [], {}), "least and the greatest"),
        (([0, float("inf")], [], {}), "least and the greatest"),
        (([], ["a", "a"], {}), "once"),
        (([], [" a"], {}), "white space"),
        (([], [], {"id": "string"}), "name of an attribute"),
        (([], [], {"a b": "string"}), "name of an attribute"),
        (([], [], {"a": "text"}), "one of string, integer"),
        (([], [], {"a": []}), "empty"),
        (([], [], {"a": [1]}), "one of string, integer"),
    ],
    ids=str,
)
def test_mistakes(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AnswerFormat.of(*settings)


def test_json_schema_accepts_what_the_form_accepts() -> None:
    import jsonschema

    jsonschema.validate(OBJECT, FIELDS.json_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(OBJECT | {"topic": "c"}, FIELDS.json_schema())
