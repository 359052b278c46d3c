"""A file is told apart as one JSON array or as JSON Lines by its beginning."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from datakit.errors import UnreadableError
from datakit.normalize import formats
from datakit.normalize.config import Config
from datakit.normalize.readers import slices
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.json_arrays.recognition import HEAD_BYTES, WINDOW_BYTES, Peeked, holds_array
from datakit.normalize.readers.slices import cut_slices
from datakit.normalize.readers.streams import DamagedError
from tests.support.normalize.readers import positions, read, reasons, rows

ARRAYS = (
    b"[\n1\n]", b'[{\n"a": 1}]', b'[{"a": 1}]', b'\xef\xbb\xbf [ {"a": 1}]\n\n', b'[{"a": 1},\n{"b": 2}]\n', b"[]",
    b" [ ]\n", b" " * (HEAD_BYTES + 5) + b'[{"a": 1}]', b"[\r\n{}\r\n]",
)  # fmt: skip
LINES = (
    b"",
    b"\n",
    b'{"a": [1]}',
    b'[1]\n{"a": 1}\n',
    b'[{"a": 1}]\n{"a": 1}\n',
    b'["a"]',
    b"[1, 2]\n[3]\n",
    b"[]\n{}",
)


@pytest.mark.parametrize(("data", "expected"), [(data, True) for data in ARRAYS] + [(data, False) for data in LINES])
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_array_is_recognized_by_the_beginning(data: bytes, expected: bool, size: int) -> None:
    stream = Peeked(data[start : start + size] for start in range(0, len(data), size))
    assert holds_array(stream) is expected
    assert b"".join(stream) == data, "nothing is lost by looking"


def test_only_the_window_is_looked_at() -> None:
    line = b'[{"a": "' + b"x" * WINDOW_BYTES + b'"}]\n{"b": 1}\n'
    assert holds_array(Peeked(iter([line]))), "its first line might be all there is"
    assert not holds_array(Peeked(iter([b" " * WINDOW_BYTES + b"[{\n"])))


def test_looking_keeps_the_damage_for_the_reader() -> None:
    def parts():  # type: ignore[no-untyped-def]
        yield b"ab"
        raise DamagedError("cut")

    stream = Peeked(parts())
    assert stream.head(10) == b"ab"
    read = iter(stream)
    assert next(read) == b"ab"
    with pytest.raises(DamagedError):
        next(read)


@pytest.mark.parametrize("name", ["in.json", "in.jsonl", "in.json.gz"])
def test_array_is_read_without_a_setting(tmp_path: Path, name: str) -> None:
    data = b'[\n {"id": 1, "text": "a"},\n {"id": 2, "text": "b"}\n]\n'
    (tmp_path / name).write_bytes(gzip.compress(data, mtime=0) if name.endswith("gz") else data)
    found, counts = read(tmp_path, name)
    assert [row["text"] for row in rows(found)] == ["a", "b"]
    assert positions(found) == [3, 28]
    assert not counts.quarantined


def test_array_among_lines_stays_a_bad_line(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'[{"text": "a"}]\n{"text": "b"}\n')
    found, counts = read(tmp_path, "in.jsonl")
    assert [row["text"] for row in rows(found)] == ["b"]
    assert reasons(counts) == [(0, "a JSON array, not an object (line 1)")]


def test_large_array_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_BYTES", 100)
    array, lines = b'[{"text": "a"}' + b',\n{"text": "a"}' * 20 + b"]", b'{"text": "a"}\n' * 20
    (tmp_path / "a.json").write_bytes(array)
    (tmp_path / "b.json").write_bytes(lines)
    (tmp_path / "c.jsonl").write_bytes(array)
    with pytest.raises(UnreadableError, match=r'c.jsonl is one JSON array, though .*format = "json-array"'):
        read(tmp_path, "c.jsonl")
    assert len(rows(read(tmp_path, "c.jsonl", format="json-array")[0])) == 21
    files = [("a.json", len(array)), ("b.json", len(lines))]
    found = [part for ranges in cut_slices(Inputs(str(tmp_path)), files, Config()) for part in ranges]
    assert [(part.path, part.format, part.start) for part in found] == [
        ("a.json", formats.JSON_ARRAY, 0), *(("b.json", formats.JSON, start) for start in (0, 100, 200)),
    ]  # fmt: skip
