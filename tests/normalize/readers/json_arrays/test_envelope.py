"""An object may hold the array, if it is clear which of its members that is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datakit.errors import UnreadableError
from datakit.normalize.readers.json_arrays.envelope import ENVELOPE_BYTES, MOST_BRACKETS
from tests.support.normalize.readers import positions, read, rows


def read_one(directory: Path, data: bytes) -> tuple[list[str], list[int]]:
    (directory / "in.json").write_bytes(data)
    found, counts = read(directory, "in.json", format="json-array")
    assert not counts.quarantined
    return [row["text"] for row in rows(found)], positions(found)


@pytest.mark.parametrize(
    "data",
    [
        b'{"data": [{"text": "a"}, {"text": "b"}]}',
        b'\xef\xbb\xbf\n{"version": "[1]", "meta": {"tags": [[1], {"x": []}]}, "data":\n[{"text": "a"}, {"text": "b"}],'
        b'\n"count": 2, "more": {"a": [1]}}\n',
        b'{"a]": null, "data": [{"text": "a"}, {"text": "b"}], "z": "]}"}',
    ],
)
def test_array_in_an_object_is_read(tmp_path: Path, data: bytes) -> None:
    assert read_one(tmp_path, data) == (["a", "b"], [data.index(b'{"text": "a'), data.index(b'{"text": "b')])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"train": [{"text": "a"}], "test": [{"text": "b"}]}', "two arrays, 'test' and 'train'"),
        (b'{"tags": [], "data": [{"text": "b"}]}', "two arrays, 'data' and 'tags'"),
        (b'{"data": [{"text": "a"}]', "the object does not end"),
        (b'{"data": [{"text": "a"}]}{"data": []}', "the object does not end"),
        (b'[{"text": "a"}]\n{"text": "b"}\n', "at byte 15, something follows"),
        (b'[{"text": "a"}}', "at byte 14, a closing brace"),
        (b'{"text": "a"}\n{"text": "b"}\n', "neither a JSON array nor"),
        (b'{"a": {"b": [1]}}', "neither a JSON array nor"),
        (b'"a"', "neither a JSON array nor"),
        (b"", "neither a JSON array nor"),
    ],
)
def test_unclear_file_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(UnreadableError, match=f"in.json.*{words}"):
        read_one(tmp_path, data)


def test_search_for_the_array_takes_bounded_time(tmp_path: Path) -> None:
    data = json.dumps({"a": {"b": [[]] * (MOST_BRACKETS + 1)}, "data": [{"text": "a"}]}).encode()
    with pytest.raises(UnreadableError, match="neither a JSON array nor"):
        read_one(tmp_path, data)
    few = json.dumps({"a": {"b": [[]] * (MOST_BRACKETS - 5)}, "data": [{"text": "a"}]}).encode()
    assert read_one(tmp_path, few)[0] == ["a"]


@pytest.mark.parametrize("place", ["before", "after"])
def test_what_surrounds_the_array_is_bounded(tmp_path: Path, place: str) -> None:
    other, data = b'"x": "' + b"y" * ENVELOPE_BYTES + b'"', b'"data": [{"text": "a"}]'
    members = (other, data) if place == "before" else (data, other)
    with pytest.raises(UnreadableError, match=f"in.json.* {ENVELOPE_BYTES} bytes"):
        read_one(tmp_path, b"{" + b",".join(members) + b"}")
