"""Each policy does what it says with values of several kinds, whichever files, chunks and slices they are in."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import ColumnError, RecipeError
from datakit.normalize.columns.conflicts import as_strings, kind_of
from datakit.normalize.readers import line_chunks, slices
from tests.support.normalize.sources import Normalized, check_contract, normalize, write_lines


def values(result: Normalized) -> list[Any]:
    """The values of column v, in the order of the records."""
    return [row.get("v") for row in sorted(result.rows(), key=lambda row: int(row["text"]))]


def write(folder: Path, files: list[list[Any]]) -> Path:
    """Write files whose records have a value in column v, and texts that number the records."""
    number = 0
    for name, found in enumerate(files):
        records = [{"text": str(number + place), "v": value} for place, value in enumerate(found)]
        write_lines(folder / f"{name:03d}.jsonl", *records)
        number += len(found)
    return folder


KINDS: dict[type, str] = {int: "number", float: "number", str: "string", bool: "boolean", dict: "object", list: "list"}
VALUE = (
    st.none() | st.integers(-9, 9) | st.floats(-4, 4) | st.booleans() | st.text("aé\"\\", max_size=2)
    | st.fixed_dictionaries({"x": st.none() | st.integers(0, 3)}) | st.lists(st.integers(0, 2), max_size=2)
)  # fmt: skip
FILES = st.lists(st.lists(VALUE, min_size=1, max_size=4), min_size=1, max_size=4)


def plain(value: Any) -> Any:
    """A scalar as a string, as normalize writes it."""
    if isinstance(value, dict | list):
        return orjson.dumps(value).decode()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value == int(value) else pa.scalar(value).cast(pa.string()).as_py()
    return value if value is None else str(value)


@settings(max_examples=12, deadline=None)
@given(files=FILES, small=st.booleans())
def test_policies_equal_plain_python(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[Any]], small: bool
) -> None:
    folder = tmp_path_factory.mktemp("in")
    source = write(folder / "in", files)
    every = [value for found in files for value in found]
    kinds = [KINDS[type(value)] for value in every if value is not None]
    with ExitStack() as stack:
        if small:
            stack.enter_context(patch.object(line_chunks, "CHUNK_BYTES", 1))
            stack.enter_context(patch.object(slices, "SLICE_BYTES", 40))
            stack.enter_context(patch.object(slices, "FILE_OVERHEAD", 0))
        string = normalize(folder / "string", source, conflicts={"v": "string"})
        dropped = normalize(folder / "drop", source, conflicts={"v": "drop"})
        nulled = normalize(folder / "null", source, conflicts={"v": "null"})
    assert values(string) == [plain(value) for value in every]
    conflict = len(set(kinds)) > 1
    assert ("v" in dropped.table().column_names) == (not conflict)
    assert dropped["values_dropped"] == (len(kinds) if conflict else 0)
    kept = [value if value is not None and KINDS[type(value)] == kinds[0] else None for value in every]
    assert values(nulled) == kept
    assert nulled["values_nulled"] == sum(kind != kinds[0] for kind in kinds)
    for result in (string, dropped, nulled):
        check_contract(result)


def test_the_error_names_column_types_files_and_the_key(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [[1], [{"x": 1}]])
    with pytest.raises(ColumnError) as caught:
        normalize(tmp_path / "out", source)
    message = str(caught.value)
    for part in ("'v'", "int64 in 000.jsonl", "struct<x: int64> in 001.jsonl", "conflicts = { 'v' = \"string\" }"):
        assert part in message


@pytest.mark.parametrize(
    "files", [[[1], ["a"]], [[1, "a"]], [[True], [1]], [[{"x": 1}], [{"x": "a"}]], [[1.5, 1 << 60]]]
)
def test_error_refuses_what_otherwise_becomes_strings(tmp_path: Path, files: list[list[Any]]) -> None:
    source = write(tmp_path / "in", files)
    normalize(tmp_path / "usual", source)
    with pytest.raises(ColumnError, match="column 'v' "):
        normalize(tmp_path / "strict", source, conflicts={"v": "error"})


@pytest.mark.parametrize("files", [[[1], [1.5]], [[1], [None]], [[{"x": 1}], [{"y": "a"}]], [["a"], ["b"]]])
def test_error_accepts_what_has_a_common_type(tmp_path: Path, files: list[list[Any]]) -> None:
    source = write(tmp_path / "in", files)
    usual, strict = (
        normalize(tmp_path / "usual", source),
        normalize(tmp_path / "strict", source, conflicts={"v": "error"}),
    )
    assert strict.table().equals(usual.table())


def test_policies_hold_between_formats(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    nested = pa.array(
        [{"x": [1, None], "when": 0}], pa.struct([("x", pa.list_(pa.int8())), ("when", pa.timestamp("s", "CET"))])
    )
    pq.write_table(pa.table({"text": ["0"], "v": nested}), tmp_path / "in" / "a.parquet")
    write_lines(tmp_path / "in" / "b.jsonl", {"text": "1", "v": {"x": [1.0, None], "y": 10**30}}, {"text": "2", "v": 7})
    (tmp_path / "in" / "c.csv").write_text("text,v\n3,7\n")
    string = normalize(tmp_path / "string", tmp_path / "in", conflicts={"v": "string"})
    first, second, *rest = values(string)
    assert json.loads(first) == {"x": [1, None], "when": "1970-01-01 00:00:00"}
    assert json.loads(second) == {"x": [1.0, None], "y": str(10**30)}, "an integer beyond 64 bits keeps its digits"
    assert rest == ["7", "7"]


@pytest.mark.parametrize("policy", ["drop", "null"])
def test_objects_that_conflict_inside_remain_an_error(tmp_path: Path, policy: str) -> None:
    source = write(tmp_path / "in", [[{"x": 1}], [{"x": {"y": 1}}]])
    with pytest.raises(ColumnError, match=r"column 'v' is struct<x: int64> .*conflicts = \{ 'v' = \"string\" \}"):
        normalize(tmp_path / "out", source, conflicts={"v": policy})
    texts = values(normalize(tmp_path / "string", source, conflicts={"v": "string"}))
    assert texts == ['{"x":1}', '{"x":{"y":1}}']


def test_where_reads_a_column_of_strings_but_none_that_is_undecided(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [[1], ["a"]])
    assert values(normalize(tmp_path / "out", source, conflicts={"v": "string"}, where="v = '1'")) == ["1"]
    with pytest.raises(RecipeError, match="`where` reads 'v', but the policy 'null' is applied only when"):
        normalize(tmp_path / "null", source, conflicts={"v": "null"}, where="v = 1")


def test_order_of_tasks_changes_no_byte(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [[1, "a"], [None], [{"x": 1}], ["b", 2.5], [[1]]])
    with patch.object(slices, "SLICE_BYTES", 40), patch.object(slices, "FILE_OVERHEAD", 0):
        results = [
            normalize(tmp_path / str(backwards), source, backwards, conflicts={"v": "null"})
            for backwards in (False, True)
        ]
    assert results[0].files() == results[1].files()


def test_kinds_of_types() -> None:
    names = {
        pa.int8(): "number", pa.decimal128(3): "number", pa.bool_(): "boolean", pa.large_string(): "string",
        pa.timestamp("us"): "date", pa.large_binary(): "bytes", pa.list_(pa.int8(), 2): "list",
        pa.struct([]): "object", pa.map_(pa.string(), pa.int8()): "object",
    }  # fmt: skip
    assert [kind_of(kind) for kind in names] == [*names.values()]


def test_nested_nulls_become_nulls_and_not_words() -> None:
    column = pa.chunked_array([pa.array([None, {"a": None}], pa.struct([("a", pa.int8())]))])
    assert as_strings(column).to_pylist() == [None, '{"a":null}']
