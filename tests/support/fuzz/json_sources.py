"""Compares whole normalized sources of JSON Lines with Python's `json`, for any cut into chunks and slices.

Values are compared in the type that the column got: the model does not decide types, but all cuts must decide the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import types

from datakit.errors import ColumnError
from datakit.normalize.number_types import float_texts
from datakit.normalize.readers import line_chunks, slices
from datakit.normalize.text_rules import WHITE_SPACE
from tests.support.normalize.json_lines import clean, odd_lines
from tests.support.normalize.sources import Normalized, check_contract, normalize

FIRST = b'{"text": "first", "k": 1, "s": "a", "flag": true}'
WHERE: dict[str, Callable[[Any, Any, Any], bool | None]] = {
    "k > 2": lambda k, s, flag: k is not None and k > 2,
    "k IS NULL OR flag": lambda k, s, flag: k is None or flag,
    "s = 'a' OR k < 2": lambda k, s, flag: s == "a" or (k is not None and k < 2),
    "length(s) > 1 AND NOT flag": lambda k, s, flag: s is not None and len(s) > 1 and flag is False,
}
TYPES = {"k": "int64", "s": "string", "flag": "bool"}


@dataclass(frozen=True)
class Case:
    """Files of lines, and how they are read. chunk, part: the sizes in bytes of the reader's chunks and slices."""

    files: tuple[tuple[bytes, ...], ...]
    end: bytes = b"\n"
    where: str | None = None
    declared: bool = False
    drop: tuple[str, ...] = ()
    chunk: int = 1 << 20
    part: int = 1 << 20

    @property
    def contents(self) -> dict[str, bytes]:
        files = ((FIRST, *self.files[0]), *self.files[1:])
        return {f"{number}.jsonl": self.end.join(lines) for number, lines in enumerate(files)}


@dataclass(frozen=True)
class Model:
    """What `json` reads: good records by text, texts that occur twice, and the places of bad lines."""

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
            record = _clean(record)
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


def _clean(value: Any) -> Any:
    if isinstance(value, list):
        return [_clean(entry) for entry in value]
    if isinstance(value, dict):
        return {clean(key): _clean(entry) for key, entry in value.items()}
    return clean(value)


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


LARGE = [(1 << 53) + 1, -(1 << 53) - 1, (1 << 63) - 1, 1 << 63, -(1 << 63) - 1, 1234567890123456789, 10**25]
INTEGERS = st.integers(-9, 9) | st.sampled_from(LARGE)
SCALARS = st.one_of(
    st.none(),
    INTEGERS,
    st.booleans(),
    st.floats(width=32) | st.sampled_from([0.1, -0.0, 1e16, float("nan"), float("inf"), 5.0]),
    st.sampled_from(["", "a", "2020-01-01", "2020-01-01T00:00:00Z", "é", "\ud800", "\0", "7"]),
)
NESTED = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)
NULL_LED = st.lists(st.none() | st.integers(0, 99), max_size=4).map(lambda values: [None, *values])
SOFT = {"k": st.none() | st.integers(0, 5), "s": st.sampled_from([None, "a", "bb"]), "flag": st.none() | st.booleans()}
COLUMNS = {
    "id": SCALARS.filter(lambda value: not isinstance(value, float) or math.isfinite(value)),
    "n": INTEGERS | st.none(),
    "x": st.one_of(INTEGERS, st.floats(), st.none()),
    "list": NULL_LED | st.none() | st.lists(st.integers(0, 9), max_size=3),
    "days": st.lists(st.sampled_from([None, "2020-01-01", "no", "2020-01-01T00:00:00Z"]), max_size=3),
    "meta": st.dictionaries(st.sampled_from(["a", "day", "deep"]), SCALARS, max_size=3) | st.none(),
    "any": SCALARS,
    "nested": NESTED,
}


@st.composite
def _record_lines(draw: st.DrawFn, number: int) -> bytes:
    """A record whose text begins with its number; a few have a repeated key or invalid UTF-8."""
    names = draw(st.sets(st.sampled_from(sorted(COLUMNS)), max_size=4))
    rest = draw(st.sampled_from(["", "", "é", "\0", " \n", "\ud800", "漢"]))
    text = draw(st.sampled_from([f"{number} {rest}"] * 12 + ["", "\0", None]))
    record = {"text": text, **draw(st.fixed_dictionaries({}, optional=SOFT))}
    record |= {name: draw(COLUMNS[name]) for name in sorted(names)}
    safe = record if draw(st.booleans()) else _clean(record)
    line = json.dumps(safe, ensure_ascii=safe is record).encode()
    change = draw(st.sampled_from(["", "", "", "", "repeat", "bytes"]))
    if change == "repeat":
        name = draw(st.sampled_from(["n", "any", "list", "k"]))
        line = line[:-1] + f', "{name}": {json.dumps(draw(COLUMNS.get(name, SOFT.get(name, SCALARS))))}}}'.encode()
    elif change == "bytes":
        line = line.replace(
            b'"text": "', b'"text": "' + draw(st.sampled_from([b"\xff", b"\xe9\xc3", b"\xed\xa0\x80"])), 1
        )
    return line


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    sizes = draw(st.lists(st.integers(0, 7), min_size=1, max_size=3))
    numbers = iter(range(sum(sizes)))
    odd = odd_lines.filter(lambda line: not line.strip(b" \t\r").startswith(b"["))
    lines = [
        [draw(_record_lines(next(numbers))) if draw(st.integers(0, 9)) else draw(odd) for _ in range(size)]
        for size in sizes
    ]
    where = draw(st.none() | st.sampled_from(sorted(WHERE)))
    drop = draw(st.sets(st.sampled_from([*sorted(COLUMNS)]), max_size=4))
    return Case(
        tuple(tuple(file) for file in lines),
        draw(st.sampled_from([b"\n", b"\r\n", b"\n \n"])),
        where,
        draw(st.booleans()),
        tuple(sorted(drop | {"nested"} if draw(st.integers(0, 3)) else drop)),
        draw(st.integers(1, 300)),
        draw(st.integers(50, 2000) | st.just(1 << 20)),
    )


CASES = _cases()
