"""The line-by-line JSON parser: types, and reasons for refusing a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from datakit.errors import ColumnError
from tests.support.normalize.readers import positions, read_json, reasons, rows

TRANSFORM: dict[str, Any] = {"transform": "datakit.tokenize.prebuilt:with_text", "transform_version": 1}
CHAT: dict[str, Any] = {"transform": "datakit.tokenize.chat:with_text", "transform_version": 1}


def test_line_parser_gives_the_same_columns(tmp_path: Path) -> None:
    good = [{"text": f"t{n}", "n": n, "x": n / 2, "m": {"k": [n, None]}, "e": {}, "d": "2020-01-01"} for n in range(9)]
    data = b"".join(json.dumps(record).encode() + b"\n" for record in good)
    fast, _ = read_json(tmp_path, data)
    slow, counts = read_json(tmp_path, b"junk\n" + data)
    assert fast[0].table.equals(slow[0].table)
    assert fast[0].table.schema == slow[0].table.schema
    assert positions(slow) == [place + 5 for place in positions(fast)]
    assert [record.position for record in counts.quarantined] == [0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2.5], [1.0, 2.5]),
        ([1, "a", 2.5, True, None], ["1", "a", "2.5", "true", None]),
        ([1 << 63, 1], [str(1 << 63), "1"]),
        ([-(1 << 63) - 1, 0.5, True], [str(-(1 << 63) - 1), "0.5", "true"]),
        ([(1 << 53) + 1, 0.5], ["9007199254740993", "0.5"]),
        ([1 << 53, 1e20], [float(1 << 53), 1e20]),
        ([10**15, 1e15, "a"], ["1000000000000000", "1000000000000000", "a"]),
        ([{"a": [1 << 64]}, {"a": [0.5]}], [{"a": [str(1 << 64)]}, {"a": ["0.5"]}]),
        ([10**4000, None], ["1" + "0" * 4000, None]),
        ([[1], ["a"], None], [["1"], ["a"], None]),
        ([{"a": 1}, {"a": "x", "b": 2}], [{"a": "1", "b": None}, {"a": "x", "b": 2}]),
        (["2020-01-01", "2020-01-01T10:00:00Z"], ["2020-01-01", "2020-01-01T10:00:00Z"]),
        ([["2020-01-01"], []], [["2020-01-01"], []]),
        ([{"t": "2020-01-01"}, {"t": None}], [{"t": "2020-01-01"}, {"t": None}]),
    ],
)
def test_types_are_widened_by_rule(tmp_path: Path, values: list[Any], expected: list[Any]) -> None:
    data = b"".join(json.dumps({"text": "t", "v": value}).encode() + b"\n" for value in values)
    found, _ = read_json(tmp_path, data)
    assert [row["v"] for row in rows(found)] == expected


@pytest.mark.parametrize("digits", ["1234567890123456789", "9" * 25, "1.50", "1e5", "-7", "0.1234567890123456789012"])
@pytest.mark.parametrize("neighbor", ["", "1", "2.5", '"a"', "1e300", str(1 << 63), "Infinity"])
def test_ids_keep_their_digits_beside_any_neighbor(tmp_path: Path, digits: str, neighbor: str) -> None:
    lines = b"".join(b'{"text": "t", "id": %s}\n' % value.encode() for value in (digits, neighbor) if value)
    found, _ = read_json(tmp_path, lines)
    assert str(rows(found)[0]["id"]) == digits
    found, _ = read_json(tmp_path, lines, **TRANSFORM)
    assert rows(found)[0]["id"] == digits
    assert found[0].table.schema.field("id").type == pa.string()


def test_transform_may_receive_ids_that_are_objects(tmp_path: Path) -> None:
    found, _ = read_json(tmp_path, b'{"id": {"$oid": "5f"}}\n{"id": null}\n', **TRANSFORM)
    assert [row["id"] for row in rows(found)] == [{"$oid": "5f"}, None]


CONTENTS = ['"a"', "5", "null", "1.5", "true", '"2020-01-01"', '["x"]', '{"k": 1}', "18446744073709551616", '""']


@pytest.mark.parametrize("chunk_bytes", [1, 150, 1 << 20])
def test_content_that_is_no_string_is_quarantined_beside_any_neighbor(tmp_path: Path, chunk_bytes: int) -> None:
    for order in (CONTENTS, CONTENTS[::-1], CONTENTS[1::2] + CONTENTS[::2]):
        data = [b'{"messages": [{"role": "user", "content": %s}]}\n' % content.encode() for content in order]
        found, counts = read_json(tmp_path, b"".join(data), chunk_bytes, **CHAT)
        kept = [row["messages"][0]["content"] for row in rows(found)]
        assert sorted(kept, key=str) == ["", "2020-01-01", None, "a"]
        assert len(counts.quarantined) == 6
        assert all("'content' in 'messages' holds a JSON" in reason for _, reason in reasons(counts))


@pytest.mark.parametrize("value", ["5", '"a"', "[5]", '[["a"]]', "{}", '[{"role": 1}]', '[null, {"role": ["a"]}]'])
@pytest.mark.parametrize("neighbor", ["", '{"messages": null}\n', '{"messages": [{"role": "user"}, null]}\n', "{}\n"])
def test_messages_of_another_shape_are_quarantined(tmp_path: Path, value: str, neighbor: str) -> None:
    found, counts = read_json(tmp_path, neighbor.encode() + b'{"messages": %s}\n' % value.encode(), **CHAT)
    assert len(rows(found)) == bool(neighbor)
    assert [place for place, _ in reasons(counts)] == [len(neighbor)]


def test_large_integers_are_exact_next_to_infinity(tmp_path: Path) -> None:
    numbers = [-(1 << 63), (1 << 63) - 1, -1000000000000000001]
    data = b"".join(b'{"text":"t","n":%d,"x":Infinity}\n' % number for number in numbers)
    found, _ = read_json(tmp_path, data)
    assert [row["n"] for row in rows(found)] == numbers


def test_objects_and_numbers_in_one_column_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match=r"in\.jsonl: column 'v' holds numbers and objects.*drop = \['v'\]"):
        read_json(tmp_path, b'{"text":"a","v":1}\n{"text":"b","v":{}}\n')
    found, _ = read_json(tmp_path, b'{"text":"a","v":1}\n{"text":"b","v":{}}\n', drop=("v",))
    assert rows(found) == [{"text": "a"}, {"text": "b"}]


def test_reasons_never_contain_text(tmp_path: Path) -> None:
    data = b"".join(
        b'{"text":"secret' + bad + b"\n" for bad in (b"", b'"', b'\x01"}', b'\\q"}', b'" secret', b'","n":01}')
    )
    _, counts = read_json(tmp_path, data)
    assert len(counts.quarantined) == 6
    assert not any("secret" in record.reason for record in counts.quarantined)
