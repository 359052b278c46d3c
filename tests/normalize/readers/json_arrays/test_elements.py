"""JSON arrays: the elements and their offsets, against a simple oracle and under every way of cutting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.normalize.readers.base import Chunk
from datakit.normalize.readers.json_arrays import elements
from datakit.normalize.readers.json_arrays.elements import ElementCutter
from datakit.normalize.readers.json_arrays.recognition import Peeked
from datakit.normalize.readers.streams import DamagedError
from datakit.normalize.record_counts import RecordCounts
from tests.support.normalize.json_lines import oracle, records
from tests.support.normalize.readers import positions, read, reasons, rows

# elements that are no records, each with balanced brackets and closed quotes
ODD = ("null", "[1, 2]", "5", '"a,b]"', '{"text": 5}', '{"text": "a" "b"}', "{,}", "nonsense", '{"text": "a\\"],["}')
spaces = st.sampled_from(["", " ", "\n", "\r\n  ", "\t"])
contents = st.lists(
    st.one_of(
        records.map(json.dumps),
        records.map(lambda record: json.dumps(record, indent=1)),
        st.sampled_from(ODD),
    ),
    max_size=12,
)


def read_array(directory: Path, data: bytes, chunk_bytes: int, **config: Any) -> tuple[list[Chunk], RecordCounts]:
    (directory / "in.json").write_bytes(data)
    with patch.object(elements, "CHUNK_BYTES", chunk_bytes):
        return read(directory, "in.json", format="json-array", **config)


def placed(content: list[str], before: str, after: str, start: str) -> tuple[bytes, list[tuple[int, bytes]]]:
    """The array's bytes, and the offset and the bytes of each element."""
    data, places = start.encode(), []
    for number, element in enumerate(content):
        data += (b"," if number else b"") + before.encode()
        places.append((len(data), element.encode()))
        data += element.encode() + after.encode()
    return data + b"]", places


@settings(max_examples=60, deadline=None)
@given(content=contents, around=st.tuples(spaces, spaces), chunk=st.integers(1, 300), mark=st.booleans())
def test_elements_are_read_like_lines(
    tmp_path_factory: pytest.TempPathFactory, content: list[str], around: tuple[str, str], chunk: int, mark: bool
) -> None:
    data, places = placed(content, *around, "\ufeff [" if mark else "[")
    found, counts = read_array(tmp_path_factory.mktemp("array"), data, chunk)
    good = {place: oracle(element.replace(b"\n", b" "))[0] for place, element in places}
    refused = {
        place
        for block in found
        for place, row in zip(positions([block]), block.table.to_pylist(), strict=True)
        if not isinstance(row.get("text", ""), str | None)
    }
    kept = [place for place in positions(found) if place not in refused]
    assert kept == [place for place, _ in places if good[place]]
    assert sorted([place for place, _ in reasons(counts)] + sorted(refused)) == [
        place for place, _ in places if not good[place]
    ]
    texts = {place: row["text"] for place, row in zip(positions(found), rows(found), strict=True)}
    assert all(texts[place] == good[place][0][1]["text"] for place in kept)
    assert counts.counters["normalize/records_in"] == len(places)


@settings(max_examples=60, deadline=None)
@given(content=contents, chunk=st.integers(1, 200), data=st.data())
def test_chunks_do_not_depend_on_the_parts_of_the_stream(content: list[str], chunk: int, data: st.DataObject) -> None:
    array = placed(content, "\n", "", "[")[0]
    limit = data.draw(st.integers(1, 200))

    def cut(size: int) -> tuple[list[tuple[int, bytes]], list[int], int]:
        long: list[int] = []
        with patch.object(elements, "CHUNK_BYTES", chunk):
            cutter = ElementCutter("in.json", limit, long.append)
            parts = (array[start : start + size] for start in range(0, len(array), size))
            return list(cutter.chunks(Peeked(parts))), long, cutter.position

    whole = cut(len(array))
    assert cut(data.draw(st.integers(1, len(array)))) == whole
    assert all(len(one) <= max(limit, chunk) + 1 for _, one in whole[0]), "one more for the comma"
    kept = sum(sum(bool(line.strip()) for line in one.split(b"\n")) for _, one in whole[0])
    assert kept + len(whole[1]) == len(content)


def test_element_over_the_limit_is_quarantined_and_the_next_is_read(tmp_path: Path) -> None:
    data = b'[{"text":"a"},{"text":"' + b"x" * 500 + b'"},{"text":"b"},{"text":"' + b"y" * 500 + b'"}]'
    found, counts = read_array(tmp_path, data, 50, max_document_bytes=100)
    assert [row["text"] for row in rows(found)] == ["a", "b"]
    assert positions(found) == [1, data.index(b'{"text":"b')]
    assert reasons(counts) == [
        (14, "longer than max_document_bytes (100)"),
        (data.index(b'{"text":"y'), "longer than max_document_bytes (100)"),
    ]


def test_commas_too_many_are_passed_over(tmp_path: Path) -> None:
    found, counts = read_array(tmp_path, b'[,{"text":"a"},,{"text":"b"},\n]', 50)
    assert ([row["text"] for row in rows(found)], counts.quarantined) == (["a", "b"], [])


@pytest.mark.parametrize("tail", [b"", b",", b',{"text":"c', b',{"text":"c"}'])
def test_array_that_is_not_closed_is_reported(tmp_path: Path, tail: bytes) -> None:
    found, counts = read_array(tmp_path, b'[{"text":"a"},{"text":"b"}' + tail, 50)
    assert [row["text"] for row in rows(found)] == (["a", "b"] if tail else ["a"])
    ((_, reason),) = reasons(counts)
    assert reason == "the file ends before its JSON array does; what follows is lost"


def test_line_end_in_a_string_is_no_json(tmp_path: Path) -> None:
    found, counts = read_array(tmp_path, b'[{"text":"a\nb"},{"text":"c"}]', 1000)
    assert ([row["text"] for row in rows(found)], positions(found)) == (["c"], [16])
    assert [place for place, _ in reasons(counts)] == [1]


def test_memory_is_bounded_by_the_limit_whatever_the_file() -> None:
    """An element without an end is dropped while it is read."""
    cutter = ElementCutter("in.json", elements.CHUNK_BYTES, lambda place: None)
    longest = 0

    def parts() -> Any:
        nonlocal longest
        yield b'[{"text":"'
        for _ in range(64):
            longest = max(longest, len(cutter._buffer))
            yield b"x" * (1 << 20)

    with pytest.raises(DamagedError):
        list(cutter.chunks(Peeked(parts())))
    assert longest <= elements.CHUNK_BYTES + (2 << 20)


def test_scanner_keeps_every_byte_in_its_place() -> None:
    from datakit.normalize.readers.json_arrays.kernels import scan_elements

    data = bytearray(b'{"a":"x\ny,]"},\n[1,2]\n]rest')
    assert scan_elements(np.frombuffer(data, np.uint8), np.array([1, 0, 0], np.int64), False) == (22, 14, 21)
    assert bytes(data) == b'{"a":"x\x01y,]"}\n [1,2] ]rest'
