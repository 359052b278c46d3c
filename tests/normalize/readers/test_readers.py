"""Readers: each format and compression gives the same records, and says where the bad ones are."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather

from datakit.engine.task import Tolerance
from datakit.errors import ColumnError, UnreadableError
from datakit.normalize.config import Config
from datakit.normalize.readers import csv as csv_reader
from datakit.normalize.readers import line_chunks, parquet_arrow
from datakit.normalize.readers.base import Chunk, ReadContext
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.line_chunks import LineCutter
from datakit.normalize.readers.slices import FileRange, cut_slices, read_range, read_slice
from datakit.normalize.readers.streams import DamagedError, decompressed
from datakit.normalize.record_counts import RecordCounts

RECORDS = [{"id": f"r{n}", "text": f'text {n}, "quoted"\nsecond line' * (n % 5 + 1)} for n in range(200)]
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


def read(directory: Path, name: str, **config: Any) -> tuple[list[Chunk], RecordCounts]:
    """All blocks of a file."""
    counts = RecordCounts(Tolerance(1000))
    context = ReadContext(Inputs(str(directory)), Config(**config), counts)
    slices = cut_slices(str(directory), [(name, (directory / name).stat().st_size)], context.config)
    return [block for pieces in slices for block in read_slice(context, pieces)], counts


def rows(found: list[Chunk]) -> list[dict[str, Any]]:
    return [row for block in found for row in block.table.to_pylist()]


def places(counts: RecordCounts) -> list[tuple[int, str]]:
    return [(record.position, record.reason) for record in counts.quarantined]


def lines(records: list[dict[str, Any]] = RECORDS) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


# --- lines


@settings(max_examples=200, deadline=None)
@given(
    data=st.lists(st.sampled_from([b"a", b"\n", b"bcd", b"e" * 20, b"\r\n"]), max_size=60).map(b"".join),
    chunk=st.integers(1, 30),
    block=st.integers(4, 24),
    cut=st.integers(1, 40),
)
def test_lines_are_cut_the_same_however_they_arrive(data: bytes, chunk: int, block: int, cut: int) -> None:
    """Ranges of a file give each of its lines once, in blocks that do not depend on the size of reads."""

    def blocks_of(start: int, stop: int | None, size: int) -> list[tuple[int, bytes]]:
        def pieces(position: int) -> Iterator[bytes]:
            yield from (data[i : i + size] for i in range(position, len(data), size))

        cutter = LineCutter(max(0, start - 1), stop, 1000, lambda _: None, inside=start > 0)
        return list(cutter.chunks(pieces(cutter.position)))

    with patch.object(line_chunks, "CHUNK_BYTES", block):
        ranges = [(start, start + cut) for start in range(0, max(1, len(data)), cut)]
        found = [piece for start, stop in ranges for piece in blocks_of(start, stop, chunk)]
        assert found == [piece for start, stop in ranges for piece in blocks_of(start, stop, 1000)]
    assert b"".join(piece for _, piece in found) == data
    assert all(data[offset : offset + len(piece)] == piece for offset, piece in found)
    assert all(offset == 0 or data[offset - 1 : offset] == b"\n" for offset, _ in found)


def test_a_line_that_is_too_long_is_streamed_past(tmp_path: Path) -> None:
    with patch.object(line_chunks, "CHUNK_BYTES", 1000), patch("datakit.normalize.readers.streams.OUTPUT_BYTES", 100):
        for length in (1990, 2001, 50_000):
            middle = json.dumps({"text": "x" * (length - 12)}).encode() + b"\n"
            (tmp_path / "in.jsonl").write_bytes(lines(RECORDS[:3]) + middle + lines(RECORDS[3:6]))
            found, counts = read(tmp_path, "in.jsonl", max_document_bytes=2000)
            expected = [] if length == 1990 else [(len(lines(RECORDS[:3])), "longer than max_document_bytes (2000)")]
            assert places(counts) == expected
            assert [row["text"] for row in rows(found) if row.get("id")] == [record["text"] for record in RECORDS[:6]]


# --- compressions


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_every_compression_gives_the_same_records(tmp_path: Path, suffix: str) -> None:
    pack = COMPRESSORS[suffix]
    middle = len(lines(RECORDS[:77]))
    (tmp_path / f"one.jsonl.{suffix}").write_bytes(pack(lines()))
    (tmp_path / f"two.jsonl.{suffix}").write_bytes(pack(lines()[:middle]) + pack(lines()[middle:]) + bytes(700))
    for name in ("one", "two"):
        found, counts = read(tmp_path, f"{name}.jsonl.{suffix}")
        assert rows(found) == RECORDS and not counts.quarantined


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.999])
def test_a_cut_off_stream_keeps_its_good_records(tmp_path: Path, suffix: str, share: float) -> None:
    records = [{"text": xxhash.xxh3_128_hexdigest(b"%d" % n) * 4} for n in range(5_000)]
    packed = COMPRESSORS[suffix](lines(records))
    (tmp_path / f"in.jsonl.{suffix}").write_bytes(packed[: max(4, int(len(packed) * share))])
    with patch.object(line_chunks, "CHUNK_BYTES", 4096):
        found, counts = read(tmp_path, f"in.jsonl.{suffix}")
    good = rows(found)
    assert good == records[: len(good)]
    assert [place for place, _ in places(counts)] == [len(lines(records[: len(good)]))]
    if share > 0.5 and suffix in ("gz", "zst"):
        assert len(good) > 0.3 * len(records)


def test_an_error_of_the_disk_is_no_damage() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 7:
                raise OSError(5, "Input/output error")
            return super().read(8)

    with pytest.raises(OSError, match="Input/output"):
        list(decompressed(Broken(gzip.compress(lines())), "in.jsonl.gz"))
    assert not issubclass(OSError, DamagedError)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("in.jsonl.gz", lines(), "is not a gzip file"),
        ("in.jsonl.zst", gzip.compress(lines()), "is not a zstd file: its first bytes are gzip"),
        ("in.jsonl", gzip.compress(lines()), "contains gzip data"),
        ("in.jsonl", b"\xff\xfe{\0}\0\n\0", "contains UTF-16 text"),
        ("in.jsonl.gz", b"", r"is empty \(0 bytes\)"),
        ("in.parquet", lines(), "is not a parquet file"),
        ("in.arrow", lines(), "is not an arrow file"),
        ("in.json", b'[\n{"text": "a"}\n]\n', "one JSON array.*jq"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UnreadableError, match=words):
        read(tmp_path, name)


def test_letters_that_look_like_a_format_are_text(tmp_path: Path) -> None:
    for name, text in (("a.txt", "PAR1 is a word"), ("b.txt", "BZh, he said"), ("c.txt", "ARROW1 too")):
        (tmp_path / name).write_text(text)
        found, counts = read(tmp_path, name)
        assert rows(found) == [{"text": text.encode(), "id": name}] and not counts.quarantined


# --- tables


@pytest.mark.parametrize("wanted", ["parquet", "arrow", "stream", "feather"])
def test_tables_give_the_same_records(tmp_path: Path, wanted: str) -> None:
    table = pa.Table.from_pylist(RECORDS)
    path = tmp_path / f"in.{wanted.replace('stream', 'arrow')}"
    if wanted == "parquet":
        pq.write_table(table, path, row_group_size=37)
    elif wanted == "feather":
        feather.write_feather(table, str(path))
    else:
        maker = pa.ipc.new_file if wanted == "arrow" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as sink, maker(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
    with patch.object(parquet_arrow, "BATCH_BYTES", 2000):
        found, counts = read(tmp_path, path.name)
    assert rows(found) == RECORDS and not counts.quarantined
    assert [place for block in found for place in block.positions] == list(range(200))
    assert len(found) > 5


def test_row_groups_are_slices(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "in.parquet", row_group_size=10)
    with patch("datakit.normalize.readers.slices.SLICE_BYTES", 3000):
        slices = cut_slices(str(tmp_path), [("in.parquet", 10_000)], Config())
    assert len(slices) > 3
    counts = RecordCounts(Tolerance())
    context = ReadContext(Inputs(str(tmp_path)), Config(), counts)
    found = [list(read_range(context, piece)) for pieces in slices for piece in pieces]
    assert [row for part in found for row in rows(part)] == RECORDS
    assert [place for part in found for block in part for place in block.positions] == list(range(200))


def test_encodings_are_taken_off(tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": pa.array(["a", "b"]).dictionary_encode(),
            "view": pa.array(["c", "d"], pa.string_view()),
            "list": pa.array([["e"], None], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
            "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
        }
    )
    with pa.OSFile(str(tmp_path / "in.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    found, _ = read(tmp_path, "in.arrow")
    assert [str(field.type) for field in found[0].table.schema] == [
        "string", "large_string", "list<item: string>", "list<item: int32>",
    ]  # fmt: skip
    assert rows(found) == table.to_pylist()


def test_a_damaged_row_group_costs_its_own_rows(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(RECORDS)
    plain: dict[str, Any] = {"use_dictionary": False, "compression": "zstd", "write_page_checksum": True}
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=50, **plain)
    data = bytearray((tmp_path / "in.parquet").read_bytes())
    chunk = pq.read_metadata(tmp_path / "in.parquet").row_group(2).column(1)
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    data[middle] ^= 0xFF
    (tmp_path / "in.parquet").write_bytes(bytes(data))
    found, counts = read(tmp_path, "in.parquet")
    assert rows(found) == RECORDS[:100] + RECORDS[150:]
    assert places(counts) == [(100, "row group 2 cannot be decoded to its end")]
    assert counts.counters["normalize/quarantined"] == 50
    assert counts.counters["normalize/records_in"] == 200


def test_a_column_name_that_is_no_utf8_is_damage(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "colname": ["b"]}), tmp_path / "in.parquet", store_schema=False)
    data = (tmp_path / "in.parquet").read_bytes()
    (tmp_path / "in.parquet").write_bytes(data.replace(b"colname", b"col\xffame"))
    found, counts = read(tmp_path, "in.parquet")
    assert not found
    assert places(counts) == [(0, "its footer cannot be read, so none of its rows can")]


def test_strings_that_are_no_utf8_are_mended_in_every_column(tmp_path: Path) -> None:
    broken = pa.StringArray.from_buffers(2, pa.array([b"ok", b"caf\xe9"]).buffers()[1], pa.py_buffer(b"okcaf\xe9"))
    table = pa.table({"text": ["a", "b"], "name": broken, "deep": pa.StructArray.from_arrays([broken], names=["x"])})
    pq.write_table(table, tmp_path / "in.parquet")
    found, counts = read(tmp_path, "in.parquet")
    assert rows(found)[1] == {"text": "b", "name": "caf\ufffd", "deep": {"x": "caf\ufffd"}}
    assert counts.counters["normalize/invalid_utf8"] == 2
    found[0].table.validate(full=True)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text,n,n\na,1,2\n")
    with pytest.raises(ColumnError, match=r"in\.csv has two columns named 'n'"):
        read(tmp_path, "in.csv")


# --- CSV


def as_csv(records: list[dict[str, str]], delimiter: str = ",", end: str = "\n") -> bytes:
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(records[0]), delimiter=delimiter, lineterminator=end)
    writer.writeheader()
    writer.writerows(records)
    return sink.getvalue().encode()


cells = st.lists(st.sampled_from(["a", '"', ",", "\n", "\t", "é", " ", "\r\n", "1"]), max_size=6).map("".join)


@settings(max_examples=150, deadline=None)
@given(
    records=st.lists(st.fixed_dictionaries({"id": cells, "text": cells}), min_size=1, max_size=12),
    tabs=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    block=st.integers(1, 60),
)
def test_csv_round_trip(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, str]], tabs: bool, end: str, block: int
) -> None:
    directory = tmp_path_factory.mktemp("csv")
    name = "in.tsv" if tabs else "in.csv"
    (directory / name).write_bytes(as_csv(records, "\t" if tabs else ",", end))
    with patch.object(csv_reader, "CHUNK_BYTES", block):
        found, counts = read(directory, name)
    assert rows(found) == records and not counts.quarantined


def test_csv_says_where_a_bad_record_is(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbfid,text\n1,a\n2,b,c\n\n3,"x\ny"\n4\n5,z'
    for name, content in (("in.csv", data), ("in.csv.gz", gzip.compress(data))):
        (tmp_path / name).write_bytes(content)
        found, counts = read(tmp_path, name)
        assert [row["text"] for row in rows(found)] == ["a", "x\ny", "z"]
        assert [row["id"] for row in rows(found)] == ["1", "3", "5"], "every column is a string"
        assert places(counts) == [(15, "3 fields instead of 2"), (30, "1 fields instead of 2")]
        assert [data[place : place + 1] for block in found for place in block.positions] == [b"1", b"3", b"5"]


def test_an_unclosed_quote_ends_a_csv_file(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b'id,text\n1,a\n2,"never closed\n' + b"3,c\n" * 2000)
    with patch.object(csv_reader, "CHUNK_BYTES", 1000):
        found, counts = read(tmp_path, "in.csv", max_document_bytes=3000)
    assert [row["text"] for row in rows(found)] == ["a"]
    assert [place for place, _ in places(counts)] == [12]


# --- slices


def test_small_files_are_gathered_and_large_ones_cut(tmp_path: Path) -> None:
    mebibyte = 1 << 20
    files = [
        ("a.jsonl.gz", 500 * mebibyte),
        ("b.jsonl", 150 * mebibyte),
        *((f"c/{n:04d}.txt", 100) for n in range(1000)),
    ]
    slices = cut_slices(str(tmp_path), files, Config())
    assert slices[0] == [FileRange("a.jsonl.gz", "json", 2000 * mebibyte + (64 << 10))]
    assert [(piece.start, piece.stop) for pieces in slices[1:4] for piece in pieces] == [
        (0, 64 * mebibyte), (64 * mebibyte, 128 * mebibyte), (128 * mebibyte, None),
    ]  # fmt: skip
    assert [len(pieces) for pieces in slices[4:]] == [255, 255, 255, 235]
    assert [piece.path for pieces in slices[4:] for piece in pieces] == [path for path, _ in files[2:]]
