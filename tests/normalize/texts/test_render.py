"""Texts made in columns equal those made record by record in plain Python, however the records are batched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.normalize.columns.paths_in_types import mistake
from datakit.normalize.settings.text_forms import TextForm, parse_text
from datakit.normalize.texts.render import texts_of
from tests.support.normalize.text_model import text_of

PART = pa.struct([("t", pa.string()), ("n", pa.int64())])
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
SCHEMA = pa.schema(
    [
        ("title", pa.string()), ("b", pa.struct([("c", pa.list_(PART)), ("d", pa.bool_())])), ("b.d", pa.bool_()),
        ("lines", pa.large_list(pa.list_(pa.string()))), ("m", pa.list_(MESSAGE)), ("nothing", pa.null()),
    ]
)  # fmt: skip
FORMS: list[Any] = [
    "b.c.t", "b.c.1.t", "lines.0", "lines.1.0", '"title"', "title.x.y",
    {"columns": ["title", "b.c.t", "lines"]}, {"columns": ["b.c.n", "b.d"], "separator": ", "},
    {"template": "{{{title}}}\n{b.c.t} {b.d}"}, {"template": "{title}{nothing}{absent}", "nulls": "missing"},
    {"template": "{b.c.n}|{title}", "nulls": "missing", "separator": ""}, {"template": "{title}{title}"},
    {"chat": "m"}, {"chat": "m", "message": "<{role}>{content}", "separator": ""}, {"chat": "b.c", "message": "{t}."},
]  # fmt: skip


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


TEXT = nullable(st.text(alphabet="aé\n{\0", max_size=3))
LISTS = {
    "part": nullable(st.fixed_dictionaries({"t": TEXT, "n": nullable(st.integers(-9, 9))})),
    "message": nullable(st.fixed_dictionaries({"role": TEXT, "content": TEXT})),
}
RECORD = st.fixed_dictionaries(
    {
        "title": TEXT,
        "b": nullable(
            st.fixed_dictionaries({"c": nullable(st.lists(LISTS["part"], max_size=3)), "d": nullable(st.booleans())})
        ),
        "b.d": nullable(st.booleans()),
        "lines": nullable(st.lists(nullable(st.lists(TEXT, max_size=3)), max_size=3)),
        "m": nullable(st.lists(LISTS["message"], max_size=3)),
        "nothing": st.none(),
    }
)


def parsed(form: Any) -> TextForm:
    found = parse_text(form)
    assert found is not None
    return found


@pytest.mark.parametrize("form", [one for one in FORMS if one != "title.x.y"], ids=str)
@settings(max_examples=60, deadline=None)
@given(records=st.lists(RECORD, min_size=1, max_size=6), start=st.integers(0, 3), cut=st.integers(0, 6))
def test_texts_equal_those_of_single_records(form: Any, records: list[dict[str, Any]], start: int, cut: int) -> None:
    one = parsed(form)
    table = pa.Table.from_pylist(records, SCHEMA)
    assert mistake(SCHEMA, one) is None
    parts = pa.concat_tables([table.slice(0, cut), table.slice(cut)]).slice(start)
    texts, long = texts_of(parts, one, 1 << 20)
    texts.validate(full=True)
    assert texts.to_pylist() == [text_of(record, one) for record in records[start:]]
    assert not long.any()


@settings(max_examples=60, deadline=None)
@given(records=st.lists(RECORD, min_size=1, max_size=6), limit=st.integers(1, 8))
@pytest.mark.parametrize("form", [{"template": "{title}{title}"}, {"columns": ["title", "lines"]}], ids=str)
def test_long_texts_are_not_made(form: Any, records: list[dict[str, Any]], limit: int) -> None:
    one = parsed({**form, "separator": ""})
    texts, long = texts_of(pa.Table.from_pylist(records, SCHEMA), one, limit)
    expected = [text_of(record, one) or "" for record in records]
    assert long.tolist() == [len(text.encode()) > limit for text in expected]
    assert texts.filter(pa.array(~long)).fill_null("").to_pylist() == [
        text for text, one_long in zip(expected, long, strict=True) if not one_long
    ]


def test_a_long_chat_is_recognized_before_it_is_joined() -> None:
    table = pa.table({"m": pa.array([[{"role": "a", "content": "x" * 50}] * 3, []], pa.list_(MESSAGE))})
    texts, long = texts_of(table, parsed({"chat": "m"}), 100)
    assert (texts.to_pylist(), long.tolist()) == ([None, None], [True, False])


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (pa.array([7, None], pa.int8()), "7"),
        (pa.array([0.5, None]), "0.5"),
        (pa.array([2.0, None]), "2"),
        (pa.array([18262, None], pa.int32()).cast(pa.date32()), "2020-01-01"),
        (pa.array([b"\xff", None]), b"\xff"),
        (pa.array([["a", None, "b"], None], pa.list_(pa.string(), 3)), "a, b"),
        (pa.array([[("k", "v"), ("k", "w")], None], pa.map_(pa.string(), pa.string())), "w"),
    ],
)
def test_values_of_all_types_are_written(array: pa.Array, text: str | bytes) -> None:
    key = "v.k" if pa.types.is_map(array.type) else "v"
    one, table = parsed({"columns": [key], "separator": ", "}), pa.table({"v": array})
    assert mistake(table.schema, one) is None
    assert texts_of(table, one, 100)[0].to_pylist() == [text, None]


def test_a_column_with_the_whole_name_comes_first() -> None:
    table = pa.table({"a.b": ["whole", None], "a": pa.array([{"b": "nested"}] * 2)})
    assert texts_of(table, parsed("a.b"), 100)[0].to_pylist() == ["whole", "nested"]
    binary = table.set_column(0, "a.b", pa.array([b"\xff", None]))
    assert texts_of(binary, parsed("a.b"), 100)[0].to_pylist() == [b"\xff", b"nested"]


@pytest.mark.parametrize(
    ("form", "kind", "reason"),
    [
        ("a.b", pa.string(), "'a.b' leads into a value of type string, which has no fields"),
        ("a.b", pa.struct([("b", pa.int64())]), "'a.b' is int64, not text"),
        ({"columns": ["a"]}, pa.struct([("b", pa.int64())]), "not text or a number"),
        ({"columns": ["a"]}, pa.map_(pa.string(), pa.string()), "not text or a number"),
        ({"chat": "a"}, pa.list_(pa.string()), "'a' holds string, not messages"),
        ({"chat": "a"}, pa.list_(pa.struct([("role", pa.int64())])), "'a.role' is int64, not text"),
    ],
)
def test_columns_of_other_types_are_refused(form: Any, kind: pa.DataType, reason: str) -> None:
    found = mistake(pa.schema([("a", kind)]), parsed(form))
    assert found is not None
    assert reason in found


def test_no_rows_make_no_texts() -> None:
    for form in FORMS:
        texts, long = texts_of(SCHEMA.empty_table(), parsed(form), 10) if form != "title.x.y" else ([], np.zeros(0))
        assert (len(texts), len(long)) == (0, 0)
