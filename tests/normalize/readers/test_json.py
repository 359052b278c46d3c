"""JSON Lines: the reader against a simple oracle, record by record."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import ColumnError, InputError
from datakit.normalize.readers.base import Chunk
from tests.support.data import need_data
from tests.support.normalize.json_lines import lines, oracle
from tests.support.normalize.readers import positions, read_json, rows


@settings(max_examples=50, deadline=None)
@given(content=st.lists(lines, max_size=15), end=st.sampled_from([b"\n", b"\r\n"]), block=st.integers(1, 400))
def test_records_equal_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes], end: bytes, block: int
) -> None:
    data = end.join(content)
    try:
        found, counts = read_json(tmp_path_factory.mktemp("json"), data, block)
    except InputError as error:
        assert re.search("contains .* data, but its name", str(error)), error
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
