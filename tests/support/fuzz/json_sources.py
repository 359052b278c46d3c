"""Compares whole normalized sources of JSON Lines with Python's `json`, for any cut into chunks and slices.

Values are compared in the type that the column got: the model does not decide types, but all cuts must decide the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyarrow import types

from datakit.errors import ColumnError, RefusedInputsError
from datakit.normalize.columns.number_types import float_texts
from datakit.normalize.readers import line_chunks, slices
from datakit.normalize.text_rules import WHITE_SPACE
from tests.support.fuzz.json_cases import CASES, TYPES, WHERE, Case, clean_deep
from tests.support.normalize.json_lines import clean
from tests.support.normalize.sources import Normalized, check_contract, normalize


@dataclass(frozen=True)
class Model:
    """The expected result, computed with `json`: the valid records by text, the duplicate texts, and the positions of
    bad lines.
    """

    records: dict[str, dict[str, Any]]
    ids: dict[str, Any]
    twice: set[str]
    bad: list[tuple[str, int]]
    everything: list[dict[str, Any]]


def check(case: Case) -> None:
    """Normalize in one piece and in many: the same table, and every record as `json` reads it."""
    expected = model(case)
    whole, pieces = _normalized(case, 1 << 20, 1 << 20), _normalized(case, case.chunk, case.part)
    mixed = any(_is_mixed([record.get(name) for record in expected.everything]) for name in _columns(case, expected))
    assert (whole is None) == (pieces is None) == mixed
    if whole is None or pieces is None:
        return
    assert whole[0].schema.equals(pieces[0].schema), f"{whole[0].schema} became {pieces[0].schema}"
    rows, parts = whole[0].to_pylist(), pieces[0].to_pylist()
    assert repr(rows) == repr(parts)
    assert whole[1] == pieces[1] == sorted(expected.bad)
    _check_rows(case, whole[0], expected)


def _normalized(case: Case, chunk: int, part: int) -> tuple[pa.Table, list[tuple[str, int]]] | None:
    with TemporaryDirectory() as name, ExitStack() as patches:
        for module, attribute, value in (
            (line_chunks, "CHUNK_BYTES", chunk), (slices, "SLICE_BYTES", part), (slices, "FILE_OVERHEAD", 0),
        ):  # fmt: skip
            patches.enter_context(patch.object(module, attribute, value))
        folder = Path(name) / "in"
        folder.mkdir()
        for path, content in case.contents.items():
            (folder / path).write_bytes(content)
        settings: dict[str, Any] = {"where": case.where} if case.where else {}
        if case.where and case.declared:
            settings["types"] = {column: kind for column, kind in TYPES.items() if column in case.where.split()}
            settings["types"] |= {"s": "string"} if "(s)" in case.where else {}
        try:
            result: Normalized = normalize(name, folder, drop=list(case.drop), max_quarantined=1000, **settings)
        except RefusedInputsError as error:
            assert all("column" in message for message in error.messages)
            return None
        except ColumnError:
            return None
        check_contract(result)
        return result.table(), result.quarantined()


def model(case: Case) -> Model:
    """Read all lines with `json`, and keep those that `where` keeps."""
    found = Model({}, {}, set(), [], [])
    for name, content in case.contents.items():
        for place, line in _lines(content):
            try:
                record = json.loads(line.decode("utf-8", "replace"))
            except ValueError:
                record = None
            record = record if isinstance(record, dict) else {"text": 0}
            text = record.get("text")
            if not isinstance(text, str | None) or isinstance(record.get("id"), dict | list):
                found.bad.append((name, place))
                continue
            record = clean_deep(record)
            found.everything.append(record)
            text = (record.get("text") or "").replace("\0", "")
            if not text.strip(WHITE_SPACE) or not _kept(case, record):
                continue
            if text in found.records:
                found.twice.add(text)
            found.records[text] = record
            written = json.loads(line.decode("utf-8", "replace"), parse_float=str, parse_int=str, parse_constant=str)
            found.ids[text] = clean(written.get("id"))
    return found


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of the lines that are not blank, without white space around them."""
    place = 0
    for line in content.split(b"\n"):
        stripped = line.strip(b" \t\r")
        if stripped:
            yield place + line.index(stripped), stripped
        place += len(line) + 1


def _kept(case: Case, record: dict[str, Any]) -> bool:
    if case.where is None:
        return True
    return bool(WHERE[case.where](record.get("k"), record.get("s"), record.get("flag")))


def _columns(case: Case, expected: Model) -> list[str]:
    names = dict.fromkeys(name for record in expected.everything for name in record)
    return [name for name in names if name not in ("text", "id", *case.drop)]


def _is_mixed(values: list[Any]) -> bool:
    """True if objects, arrays and scalars share a place, so that no type holds them all."""
    kinds = {type(value) if isinstance(value, dict | list) else object for value in values if value is not None}
    if len(kinds) > 1:
        return True
    if kinds == {list}:
        return _is_mixed([entry for value in values if value for entry in value])
    if kinds == {dict}:
        names = {name for value in values if value for name in value}
        return any(_is_mixed([value.get(name) for value in values if value]) for name in names)
    return False


def _check_rows(case: Case, table: pa.Table, expected: Model) -> None:
    rows = {row["text"]: row for row in table.to_pylist()}
    assert set(rows) == set(expected.records)
    names = _columns(case, expected)
    for name in names:
        _check_type(name, table, [record.get(name) for record in expected.everything])
    for text in set(rows) - expected.twice:
        written = expected.ids[text]
        if written != "-0" and "id" not in case.drop:
            shown = str(written).lower() if isinstance(written, bool) else written
            assert rows[text]["source_id"] == shown, (text, "id")
        for name in names:
            if name in table.column_names:
                value = rendered(expected.records[text].get(name), table.schema.field(name).type)
                assert repr(rows[text][name]) == repr(value), (text, name)
            else:
                assert expected.records[text].get(name) in (None, {}), (text, name)


def _check_type(name: str, table: pa.Table, values: list[Any]) -> None:
    """A column of one kind of scalar keeps that kind."""
    kinds = {type(value) for value in values if value is not None}
    small = all(-(1 << 63) <= value < 1 << 63 for value in values if type(value) is int)
    expected = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    if len(kinds) == 1 and (kind := kinds.pop()) in expected and small and name in table.column_names:
        assert table.schema.field(name).type == expected[kind], name


def rendered(value: Any, kind: pa.DataType) -> Any:
    """The value of a column of this type for a value of `json`."""
    if value is None:
        return None
    if types.is_struct(kind):
        return {field.name: rendered(value.get(field.name), field.type) for field in kind.fields}
    if types.is_list(kind):
        return [rendered(entry, kind.value_type) for entry in value]
    if types.is_string(kind):
        return _text(value)
    if types.is_floating(kind):
        assert math.isnan(value) or float(value) == value, "a digit is lost"
        return float(value)
    return value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return float_texts(pa.array([value])).to_pylist()[0]
    return "{}" if value == {} and isinstance(value, dict) else str(value).lower()


__all__ = ["CASES", "Case", "check"]
