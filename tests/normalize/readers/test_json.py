"""JSON Lines: the reader against a simple oracle, record by record."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import ColumnError, InputError
from datakit.normalize.readers.base import Chunk
from tests.support.data import need_data
from tests.support.normalize.readers import positions, read_json, rows

LONE = re.compile("[\ud800-\udfff]")


def oracle(data: bytes) -> tuple[list[tuple[int, dict[str, Any]]], list[int]]:
    """(offset, record) of the good lines, and the offsets of the others."""
    good, bad, offset = [], [], 0
    for line in data.split(b"\n"):
        begin = offset + len(line) - len(line.lstrip(b" \t\r"))
        offset += len(line) + 1
        if not line.strip(b" \t\r"):
            continue
        try:
            record = json.loads(line.strip(b" \t\r").decode("utf-8", "replace"))
        except ValueError:
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("text", ""), str | None):
            bad.append(begin)
            continue
        good.append((begin, clean(record)))
    return good, bad


def clean(value: Any) -> Any:
    if isinstance(value, str):
        return LONE.sub("\ufffd", value)
    return {clean(key): clean(entry) for key, entry in value.items()} if isinstance(value, dict) else value


texts = st.text(st.characters(codec=None), max_size=12)  # lone surrogates included


dates = st.sampled_from(["2020-01-01", "2020-01-01T00:00:00Z", "2020-01-01 00:00:00", "not a date"])


records = st.fixed_dictionaries(
    {"text": texts},
    optional={
        "id": st.one_of(st.none(), texts),
        "day": dates,
        "n": st.integers(-(1 << 63), (1 << 63) - 1),
        "x": st.floats(allow_nan=False),
        "flag": st.booleans(),
        "meta": st.fixed_dictionaries({}, optional={"a": st.integers(0, 9), "day": dates, "deep": st.just({"z": 1})}),
        "tags": st.lists(dates, max_size=3),
    },
)


ODD = [
    b"", b"  ", b"\r", b"null", b"[1]", b"{}", b"{}{}", b"}{", b"\0", b'"}', b'{"text":5}', b'{"text":["a"]}',
    b'{"text":null}', b'{"text":"a","text":"b"}', b'{"text":"caf\xe9"}', b'{"text":"cut', b'{"x":1e999}',
]  # fmt: skip


odd_lines = st.one_of(st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")), st.sampled_from(ODD))


lines = st.one_of(
    records.map(lambda record: json.dumps(record).encode()),
    records.map(lambda record: json.dumps(clean(record), ensure_ascii=False).encode()),
    odd_lines,
)


@settings(max_examples=50, deadline=None)
@given(content=st.lists(lines, max_size=15), end=st.sampled_from([b"\n", b"\r\n"]), block=st.integers(1, 400))
def test_records_equal_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes], end: bytes, block: int
) -> None:
    data = end.join(content)
    try:
        found, counts = read_json(tmp_path_factory.mktemp("json"), data, block)
    except InputError as error:
        assert re.search("contains .* data, but its name|one JSON array", str(error)), error
        return
    if data.startswith(b"\xef\xbb\xbf"):
        return  # tested separately
    good, bad = oracle(data)
    expected = dict(good)
    refused = {place for place, _ in _refused(found)}
    kept = [(place, row) for place, row in zip(positions(found), rows(found), strict=True) if place not in refused]
    assert sorted([record.position for record in counts.quarantined] + sorted(refused)) == bad
    assert [place for place, _ in kept] == [place for place, _ in good]
    for place, row in kept:
        assert _plain(row) == _plain(expected[place]), place
    assert counts.counters["normalize/records_in"] == len(good) + len(bad)


def _refused(found: list[Chunk]) -> list[tuple[int, Any]]:
    """Records of a chunk in which no text is a string; they are refused later, by the column's type."""
    return [
        (int(place), text)
        for block in found
        if "text" in block.table.column_names
        for place, text in zip(block.positions, block.table.column("text").to_pylist(), strict=True)
        if text is not None and not isinstance(text, str)
    ]


def _plain(value: Any) -> Any:
    """Drop differences that columns cannot express: missing key or null, empty struct or struct of nulls."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items() if _plain(entry) not in (None, {})}
    return value


def test_byte_order_mark_and_line_ends_are_skipped(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbf{"text":"a\\r\\n"}\r\n\r\n \t\r\n{"text":"b"}'
    found, counts = read_json(tmp_path, data)
    assert rows(found) == [{"text": "a\r\n"}, {"text": "b"}]
    assert positions(found) == [3, data.index(b'{"text":"b')]
    assert not counts.quarantined


MIXED = ("y_array_heterogeneous.json",)  # an object and numbers in one column


ACCEPTED = ("n_number_NaN.json", "n_number_infinity.json", "n_number_minus_infinity.json")  # as Python writes them


def test_json_test_suite_is_parsed(tmp_path: Path) -> None:
    """Each case is the value of a column: valid ones are kept, invalid ones refused, and the next line is read."""
    folder = need_data() / "pathological" / "json" / "test_parsing"
    cases = sorted(folder.glob("*.json"))
    assert len(cases) > 250
    for case in cases:
        content = case.read_bytes()
        if b"\n" in content.strip():
            continue
        data = b'{"text":"case","v":' + content.strip(b"\n") + b'}\n{"text":"next"}\n'
        if case.name in MIXED:
            with pytest.raises(ColumnError, match="'v'"):
                read_json(tmp_path, data)
            continue
        found, counts = read_json(tmp_path, data)
        texts = [row["text"] for row in rows(found)]
        assert texts[-1:] == ["next"], case.name
        assert counts.counters["normalize/records_in"] == 2, case.name
        deep = case.name in ("i_structure_500_nested_arrays.json",)
        if (case.name.startswith("y_") or case.name in ACCEPTED) and not deep:
            assert texts == ["case", "next"], case.name
        elif case.name.startswith("n_"):
            assert texts == ["next"], case.name
