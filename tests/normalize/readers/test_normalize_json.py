"""JSON Lines: the columnar reader against a reader that a person would write, record by record."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.engine.task import Tolerance
from datakit.errors import ColumnError, InputError
from datakit.normalize.config import Config
from datakit.normalize.readers import line_chunks
from datakit.normalize.readers.base import Chunk, ReadContext
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.slices import FileRange, read_range
from datakit.normalize.record_counts import RecordCounts
from tests.support.data import need_data

LONE = re.compile("[\ud800-\udfff]")


def read(directory: Path, data: bytes, block_bytes: int = 1 << 20, **config: Any) -> tuple[list[Chunk], RecordCounts]:
    """The blocks of a file with this content."""
    (directory / "in.jsonl").write_bytes(data)
    counts = RecordCounts(Tolerance(1000))
    with patch.object(line_chunks, "CHUNK_BYTES", block_bytes):
        found = list(
            read_range(ReadContext(Inputs(str(directory)), Config(**config), counts), FileRange("in.jsonl", "json", 0))
        )
    return found, counts


def rows(found: list[Chunk]) -> list[dict[str, Any]]:
    return [row for block in found for row in block.table.to_pylist()]


def positions(found: list[Chunk]) -> list[int]:
    return [int(place) for block in found for place in block.positions]


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


# --- property


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


@settings(max_examples=300, deadline=None)
@given(content=st.lists(lines, max_size=15), end=st.sampled_from([b"\n", b"\r\n"]), block=st.integers(1, 400))
def test_records_equal_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes], end: bytes, block: int
) -> None:
    data = end.join(content)
    try:
        found, counts = read(tmp_path_factory.mktemp("json"), data, block)
    except InputError as error:
        assert re.search("contains .* data, but its name|one JSON array", str(error)), error
        return
    if data.startswith(b"\xef\xbb\xbf"):
        return  # a byte order mark: its own test
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
    """Records of a block in which no text is a string: they are refused later, by the column's type."""
    return [
        (int(place), text)
        for block in found
        if "text" in block.table.column_names
        for place, text in zip(block.positions, block.table.column("text").to_pylist(), strict=True)
        if text is not None and not isinstance(text, str)
    ]


def _plain(value: Any) -> Any:
    """Without what columns cannot tell apart: a missing key and a null, an empty struct and one of nulls."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items() if _plain(entry) not in (None, {})}
    return value


# --- single promises


def test_the_slow_way_gives_the_same_columns(tmp_path: Path) -> None:
    good = [{"text": f"t{n}", "n": n, "x": n / 2, "m": {"k": [n, None]}, "e": {}, "d": "2020-01-01"} for n in range(9)]
    data = b"".join(json.dumps(record).encode() + b"\n" for record in good)
    fast, _ = read(tmp_path, data)
    slow, counts = read(tmp_path, b"junk\n" + data)
    assert fast[0].table.equals(slow[0].table)
    assert fast[0].table.schema == slow[0].table.schema
    assert positions(slow) == [place + 5 for place in positions(fast)]
    assert [record.position for record in counts.quarantined] == [0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2.5], [1.0, 2.5]),
        ([1, "a", 2.5, True, None], ["1", "a", "2.5", "true", None]),
        ([1 << 63, 1], [float(1 << 63), 1.0]),
        ([[1], ["a"], None], [["1"], ["a"], None]),
        ([{"a": 1}, {"a": "x", "b": 2}], [{"a": "1", "b": None}, {"a": "x", "b": 2}]),
        (["2020-01-01", "2020-01-01T10:00:00Z"], ["2020-01-01", "2020-01-01T10:00:00Z"]),
        ([["2020-01-01"], []], [["2020-01-01"], []]),
        ([{"t": "2020-01-01"}, {"t": None}], [{"t": "2020-01-01"}, {"t": None}]),
    ],
)
def test_types_are_widened_by_rule(tmp_path: Path, values: list[Any], expected: list[Any]) -> None:
    data = b"".join(json.dumps({"text": "t", "v": value}).encode() + b"\n" for value in values)
    found, _ = read(tmp_path, data)
    assert [row["v"] for row in rows(found)] == expected


def test_dates_stay_strings_in_every_block(tmp_path: Path) -> None:
    """A column that looks like dates in one block, and like something else, or nothing, in the next."""
    values = ["2020-01-01"] * 5 + ["n/a"] * 5 + [None] * 5 + ["2021-01-01"] * 5 + [7] * 5
    data = b"".join(json.dumps({"text": "t", "day": value}).encode() + b"\n" for value in values)
    found, _ = read(tmp_path, data, 150)
    assert len(found) >= 4
    days = [row.get("day") for row in rows(found)]
    assert days[:20] == values[:20]
    assert {str(day) for day in days[20:]} == {"7"}, "a number beside dates becomes a string"


def test_large_integers_are_exact_beside_what_json_lacks(tmp_path: Path) -> None:
    numbers = [-(1 << 63), (1 << 63) - 1, -1000000000000000001]
    data = b"".join(b'{"text":"t","n":%d,"x":Infinity}\n' % number for number in numbers)
    found, _ = read(tmp_path, data)
    assert [row["n"] for row in rows(found)] == numbers


def test_objects_and_numbers_in_one_column_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match=r"in\.jsonl: column 'v' holds numbers and objects.*drop = \['v'\]"):
        read(tmp_path, b'{"text":"a","v":1}\n{"text":"b","v":{}}\n')
    found, _ = read(tmp_path, b'{"text":"a","v":1}\n{"text":"b","v":{}}\n', drop=("v",))
    assert rows(found) == [{"text": "a"}, {"text": "b"}]


def test_byte_order_mark_and_line_ends(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbf{"text":"a\\r\\n"}\r\n\r\n \t\r\n{"text":"b"}'
    found, counts = read(tmp_path, data)
    assert rows(found) == [{"text": "a\r\n"}, {"text": "b"}]
    assert positions(found) == [3, data.index(b'{"text":"b')]
    assert not counts.quarantined


@pytest.mark.parametrize("depth", [10, 47, 48, 49, 500, 1000, 5000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_refused_by_name(tmp_path: Path, depth: int, opening: str, closing: str) -> None:
    deep = '{"text":"deep","v":' + opening * depth + "1" + closing * depth + "}"
    data = b'{"text":"before"}\n' + deep.encode() + b'\n{"text":"after"}\n'
    found, counts = read(tmp_path, data)
    texts = [row["text"] for row in rows(found)]
    if depth < 48:
        assert texts == ["before", "deep", "after"]
    else:
        assert texts == ["before", "after"]
        assert [(r.position, r.reason) for r in counts.quarantined] == [(18, "nested deeper than 48 levels")]


def test_brackets_in_strings_are_no_depth(tmp_path: Path) -> None:
    texts = ['"' + "[{" * 1000, "\\" * 99 + '"{[' * 200, "{" * 3000]
    data = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)
    found, counts = read(tmp_path, data)
    assert [row["text"] for row in rows(found)] == texts and not counts.quarantined


def test_objects_must_not_share_or_span_lines(tmp_path: Path) -> None:
    data = b'{"text":"a"}{"text":"b"}\n{"text":\n"c"}\n{"text":"d"}\n'
    found, counts = read(tmp_path, data)
    assert [row["text"] for row in rows(found)] == ["d"]
    assert [record.position for record in counts.quarantined] == [0, 25, 34]


def test_reasons_never_hold_text(tmp_path: Path) -> None:
    data = b"".join(
        b'{"text":"secret' + bad + b"\n" for bad in (b"", b'"', b'\x01"}', b'\\q"}', b'" secret', b'","n":01}')
    )
    _, counts = read(tmp_path, data)
    assert len(counts.quarantined) == 6
    assert not any("secret" in record.reason for record in counts.quarantined)


# --- the JSON test suite


MIXED = ("y_array_heterogeneous.json",)  # an object beside numbers: no column holds that
ACCEPTED = ("n_number_NaN.json", "n_number_infinity.json", "n_number_minus_infinity.json")  # as Python writes them


def test_the_json_test_suite(tmp_path: Path) -> None:
    """Each case as the value of a column: valid ones are kept, invalid ones refused, and the next line is unharmed."""
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
                read(tmp_path, data)
            continue
        found, counts = read(tmp_path, data)
        texts = [row["text"] for row in rows(found)]
        assert texts[-1:] == ["next"], case.name
        assert counts.counters["normalize/records_in"] == 2, case.name
        deep = case.name in ("i_structure_500_nested_arrays.json",)
        if (case.name.startswith("y_") or case.name in ACCEPTED) and not deep:
            assert texts == ["case", "next"], case.name
        elif case.name.startswith("n_"):
            assert texts == ["next"], case.name
