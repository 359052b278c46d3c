"""The setting `text` is parsed into a form, and mistakes in it are named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.errors import RecipeError
from datakit.normalize.config import Config
from datakit.normalize.settings.paths import ColumnPath
from datakit.normalize.settings.text_forms import parse_template, parse_text

TITLE, BODY = ColumnPath("title", ("title",)), ColumnPath("b.t", ("b", "t"))


def test_a_name_without_dots_is_a_column_and_no_form() -> None:
    assert [parse_text(name) for name in ("text", "two words", "{title}", "a.", '"')] == [None] * 5


def test_a_template_alternates_strings_and_paths() -> None:
    assert parse_template("{title}\n\n{b.t}", "text") == (TITLE, "\n\n", BODY)
    assert parse_template("{{{title}}} {{x}}", "text") == ("{", TITLE, "} {x}")
    assert parse_template('{"odd }{ name".x}', "text") == (ColumnPath('"odd }{ name".x', ("odd }{ name", "x")),)


@given(st.text(alphabet="ab{}\n", max_size=12))
def test_escaped_braces_stand_for_themselves(plain: str) -> None:
    escaped = plain.replace("{", "{{").replace("}", "}}")
    pieces = parse_template(escaped + "{title}" + escaped, "text")
    assert "".join(one for one in pieces if isinstance(one, str)) == plain * 2
    assert [one for one in pieces if not isinstance(one, str)] == [TITLE]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "`text` is empty"),
        ({}, "exactly one of the keys columns, template, chat"),
        ({"template": "{a}", "columns": ["a"]}, "exactly one of the keys"),
        ({"template": "{a}", "sep": ""}, "unknown key 'sep' beside 'template'"),
        ({"columns": ["a"], "nulls": "empty"}, "unknown key 'nulls' beside 'columns'"),
        ({"columns": "a"}, "text.columns must be a list"),
        ({"columns": []}, "text.columns must be a list"),
        ({"columns": ["a..b"]}, "text.columns: 'a..b' is not a path"),
        ({"template": "no column"}, "names no column"),
        ({"template": "{a} {b"}, "the '{' at character 5 has no counterpart; write '{{'"),
        ({"template": "{a}}"}, "the '}' at character 4 has no counterpart"),
        ({"template": "{}"}, "text.template: '' is not a path"),
        ({"template": "{a}", "nulls": "none"}, "text.nulls 'none' is unknown"),
        ({"template": 5}, "text.template must be a string"),
        ({"chat": "messages", "message": "{a"}, "text.message: "),
        ({"chat": "m", "separator": 1}, "text.separator must be a string"),
    ],
)
def test_mistakes_are_named(text: Any, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Config(text=text)
    assert message in str(caught.value)


def test_a_template_executes_nothing() -> None:
    assert parse_text({"template": "{a.__class__}{b!r}{c:>5}"}) is not None
    (path, *_) = Config(text={"template": "{a.__class__}"}).text_paths
    assert path.parts == ("a", "__class__"), "a field of this name, and no attribute"
