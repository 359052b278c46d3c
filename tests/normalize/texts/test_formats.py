"""A text form makes the same documents of all formats, and a record's fate never depends on its neighbors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import ColumnError
from datakit.normalize.config import Config
from tests.support.normalize.readers import read_json, rows
from tests.support.normalize.sources import check_contract, normalize, write_lines
from tests.support.normalize.text_model import text_of

RECORDS: list[dict[str, Any]] = [
    {"id": "1", "title": "One", "body": "First", "n": 1},
    {"id": "2", "title": None, "body": "Second", "n": None},
    {"id": "3", "title": "Three", "body": None, "n": 3},
    {"id": "4", "title": None, "body": None, "n": None},
]
TEMPLATE = {"template": "{title}: {body} ({n})"}
NESTED = [
    {"id": "1", "r": {"body": [{"text": "a"}, {"text": None}, {"text": "b"}]}, "m": [{"role": "user", "content": "q"}]},
    {"id": "2", "r": None, "m": [{"role": "user", "content": None}, {"role": "assistant", "content": "A"}]},
    {"id": "3", "r": {"body": []}, "m": []},
]


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    table = pa.Table.from_pylist(records)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".csv":
        lines = [",".join(table.column_names)]
        lines += [",".join("" if value is None else str(value) for value in record.values()) for record in records]
        path.write_text("\n".join(lines) + "\n")
    else:
        write_lines(path, *records)
    return path


def documents(result: Any) -> dict[str, str]:
    return {row["source_id"]: row["text"] for row in result.rows()}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".arrow", ".csv"])
def test_templates_work_for_all_formats(tmp_path: Path, suffix: str) -> None:
    result = normalize(tmp_path / "out", write(tmp_path / f"in{suffix}", RECORDS), text=TEMPLATE)
    check_contract(result)
    expected = {"1": "One: First (1)", "2": ": Second ()", "3": "Three:  (3)"}
    # a CSV file has no nulls: an empty field is an empty string
    assert documents(result) == expected | ({"4": ":  ()"} if suffix == ".csv" else {})
    assert result["missing"] == (0 if suffix == ".csv" else 1)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".arrow"])
def test_nested_values_and_chats_work_for_all_nested_formats(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"in{suffix}", NESTED)
    assert documents(normalize(tmp_path / "path", path, text="r.body.text")) == {"1": "a\n\nb"}
    chat = normalize(tmp_path / "chat", path, text={"chat": "m"})
    assert documents(chat) == {"1": "user: q", "2": "user: \n\nassistant: A"}
    assert chat["missing"] == 1
    assert {row["source_id"]: row["m"] for row in chat.rows()}["1"] == NESTED[0]["m"], "the messages stay a column"


def test_text_files_have_a_name_and_a_text(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.md").write_bytes(b"caf\xc3\xa9 \xff")
    result = normalize(tmp_path / "out", tmp_path / "in", text={"template": "# {id}\n{text}"})
    assert documents(result) == {"a.md": "# a.md\ncafé \ufffd"}
    assert result["invalid_utf8"] == 1


def test_a_split_and_a_where_see_the_text_that_is_made(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", RECORDS)
    result = normalize(tmp_path / "out", path, text={"columns": ["title", "body"]}, where="text = 'One\n\nFirst'")
    assert documents(result) == {"1": "One\n\nFirst"}
    assert (result["where_dropped"], result["missing"]) == (3, 0), "a record without a text does not match either"


def test_an_upstream_text_is_kept_under_another_name(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"title": "T", "text": "body"})
    (row,) = normalize(tmp_path / "out", tmp_path / "in.jsonl", text={"template": "{title} {text}"}).rows()
    assert (row["text"], row["title"], row["upstream_text"]) == ("T body", "T", "body")


LEAF = st.none() | st.integers(-3, 3) | st.booleans() | st.floats(-4, 4) | st.text("xé", max_size=2) | st.just({})
VALUES = st.lists(st.fixed_dictionaries({"a": st.none() | st.fixed_dictionaries({"b": LEAF})}), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(records=VALUES, size=st.sampled_from([1, 40, 1 << 20]), form=st.sampled_from(["a.b", {"columns": ["a.b"]}]))
def test_a_wrong_value_costs_one_record_wherever_chunks_end(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], size: int, form: Any
) -> None:
    data = b"".join(json.dumps({"k": number, **record}).encode() + b"\n" for number, record in enumerate(records))
    scalars = (str,) if form == "a.b" else (str, int, float)
    good = [
        number
        for number, record in enumerate(records)
        if record["a"] is None or record["a"]["b"] is None or isinstance(record["a"]["b"], scalars)
    ]
    chunks, counts = read_json(tmp_path_factory.mktemp("in"), data, size, text=form)
    assert [row["k"] for row in rows(chunks)] == good
    assert len(counts.quarantined) == len(records) - len(good)
    assert counts.counters["normalize/records_in"] == len(records)
    assert all("'a.b' holds a JSON" in record.reason for record in counts.quarantined)


HOSTILE: list[tuple[Any, bool]] = [
    (None, True), ([], True), ([None], True), ([{"role": "user"}], True), ([{"role": None, "content": None}], True),
    ("text", False), (5, False), ({"role": "user", "content": "one message"}, True), ([["x"]], False), ([5], False),
    ([{"role": 5, "content": "x"}], False), ([{"role": "user", "content": {"a": 1}}], False),
    ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], False), ([{"role": "u", "content": ["x"]}], True),
]  # fmt: skip


def test_hostile_messages_are_quarantined_one_by_one(tmp_path: Path) -> None:
    for number, (messages, usable) in enumerate(HOSTILE):
        around = [{"m": [{"role": "user", "content": "before"}]}, {"m": messages}, {"m": []}]
        folder = tmp_path / str(number)
        write_lines(folder / "in.jsonl", *around)
        try:
            result = normalize(folder / "out", folder / "in.jsonl", text={"chat": "m"}, max_quarantined=1)
        except ColumnError as error:
            assert usable, "values that can be read, but not as one column"
            assert "column 'm' holds" in str(error) or "column" in str(error)
            continue
        check_contract(result)
        assert result["quarantined"] == (not usable), messages
        assert result["records_in"] == 3


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_typed_file_with_other_types_is_refused(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"in{suffix}", [{"a": {"b": 5}}])
    with pytest.raises(ColumnError, match=rf"in{suffix}: 'a.b' is int64, not text; change the source's `text`"):
        normalize(tmp_path / "out", path, text="a.b")


def test_unknown_columns_are_errors_that_list_the_others(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", *NESTED)
    with pytest.raises(
        ColumnError, match=r"a\.jsonl has no column 'r\.bdy\.text'; it has id, r, m, r\.body, r\.body\.text"
    ):
        normalize(tmp_path / "1", tmp_path / "in", text="r.bdy.text")
    with pytest.raises(ColumnError, match=r"none of the columns that `text` reads \('x', 'y'\); it has id, r"):
        normalize(tmp_path / "2", tmp_path / "in", text={"columns": ["x", "y"]})
    with pytest.raises(ColumnError, match=r"text: no record has the field 'm\.contents'; did you mean 'm\.content'"):
        normalize(tmp_path / "3", tmp_path / "in", text={"template": "{m.content}{m.contents}"})
    with pytest.raises(ColumnError, match=r"where: no record has the field 'r\.bodies'; did you mean 'r\.body'"):
        normalize(tmp_path / "4", tmp_path / "in", text="r.body.text", where="r.bodies is null")


def test_a_long_text_is_quarantined(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"a": "x" * 40}, {"a": "y"})
    result = normalize(
        tmp_path / "out", tmp_path / "in.jsonl", text={"template": "{a}{a}{a}"}, max_document_bytes=60,
        max_quarantined=1,
    )  # fmt: skip
    assert [row["text"] for row in result.rows()] == ["yyy"]
    assert result.quarantined() == [("in.jsonl", 0)]


@settings(max_examples=25, deadline=None)
@given(
    records=st.lists(
        st.fixed_dictionaries({"t": st.none() | st.text("aé{}", max_size=2), "n": st.none() | st.integers(-5, 5)}),
        min_size=1, max_size=8,
    )
)  # fmt: skip
def test_json_and_parquet_make_equal_texts(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]]
) -> None:
    config = Config(text={"template": "{t}|{n}"})
    form = config.text_form
    assert form is not None
    expected = sorted({text for record in records if (text := text_of(record, form)) is not None})
    folder = tmp_path_factory.mktemp("in")
    schema = pa.schema([("t", pa.string()), ("n", pa.int64())])
    pq.write_table(pa.Table.from_pylist(records, schema), folder / "in.parquet")
    write_lines(folder / "in.jsonl", {"t": "x", "n": 0}, *records)
    if expected:
        parquet = normalize(folder / "p", folder / "in.parquet", text=config.text)
        assert sorted(row["text"] for row in parquet.rows()) == expected
    json_lines = normalize(folder / "j", folder / "in.jsonl", text=config.text)
    assert sorted(row["text"] for row in json_lines.rows()) == sorted({*expected, "x|0"})
