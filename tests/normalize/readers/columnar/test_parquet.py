"""Parquet and Arrow files: the same records, and damage by row group."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from datakit.engine.task import TaskContext, Tolerance
from datakit.errors import ColumnError
from datakit.normalize.config import Config
from datakit.normalize.readers import base
from datakit.normalize.readers.base import ReadContext
from datakit.normalize.readers.columnar import row_by_row, tables
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.slices import FileRange, cut_slices, read_range
from datakit.normalize.record_counts import RecordCounts
from datakit.storage.row_size import row_sizes
from tests.support.normalize.readers import RECORDS, read, reasons, rows
from tests.support.normalize.sources import normalize


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
    with patch.object(tables, "BATCH_BYTES", 2000):
        found, counts = read(tmp_path, path.name)
    assert rows(found) == RECORDS and not counts.quarantined
    assert [place for block in found for place in block.positions] == list(range(200))
    assert len(found) > 5


def test_ranges_of_row_groups_give_all_records(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "in.parquet", row_group_size=10)
    with patch("datakit.normalize.readers.slices.SLICE_BYTES", 3000):
        slices = cut_slices(Inputs(str(tmp_path)), [("in.parquet", 10_000)], Config())
    assert len(slices) > 3
    counts = RecordCounts(Tolerance())
    context = ReadContext(Inputs(str(tmp_path)), Config(), counts)
    found = [list(read_range(context, piece)) for pieces in slices for piece in pieces]
    assert [row for part in found for row in rows(part)] == RECORDS
    assert [place for part in found for block in part for place in block.positions] == list(range(200))


def test_encodings_are_decoded(tmp_path: Path) -> None:
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


def test_damaged_row_group_loses_its_own_rows(tmp_path: Path) -> None:
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
    assert reasons(counts) == [(100, "row group 2 cannot be decoded to its end")]
    assert counts.counters["normalize/quarantined"] == 50
    assert counts.counters["normalize/records_in"] == 200


def test_column_name_that_is_not_utf8_is_damage(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "colname": ["b"]}), tmp_path / "in.parquet", store_schema=False)
    data = (tmp_path / "in.parquet").read_bytes()
    (tmp_path / "in.parquet").write_bytes(data.replace(b"colname", b"col\xffame"))
    found, counts = read(tmp_path, "in.parquet")
    assert not found
    assert reasons(counts) == [(0, "its footer cannot be read, so none of its rows can")]


def test_rows_of_a_column_that_ends_early_are_quarantined(tmp_path: Path) -> None:
    """pyarrow ends a row group at its shortest column, without an error if a batch ends there too."""
    path = tmp_path / "in.parquet"
    table = pa.table({"text": ["a", "b", "c", "d", "e"], "n": [1, 2, 3, 4, 5]})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False)
    data, start = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(0).column(1).data_page_offset
    data[data.index(b"\x2c\x15\x0a", start) + 2] = 4  # the page's number of values: 2 instead of 5
    path.write_bytes(data)
    with patch.object(tables, "MOST_ROWS", 2):
        found, counts = read(tmp_path, path.name)
    assert rows(found) == table.slice(0, 2).to_pylist()
    assert reasons(counts) == [(2, "row group 0 cannot be decoded to its end")]
    assert counts.counters["normalize/quarantined"] == 3


def test_arrow_arrays_with_wrong_offsets_are_quarantined(tmp_path: Path) -> None:
    path = tmp_path / "in.arrow"
    table = pa.table({"text": ["abc", "de", "f"], "n": [[1, 2], [3], [4]]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    good = path.read_bytes()
    for offsets in ([0, 3, 5, 6], [0, 2, 3, 4]):
        data = bytearray(good)
        place = data.index(np.array(offsets, np.int32).tobytes())
        data[place + 4 : place + 8] = np.array([9], np.int32).tobytes()
        path.write_bytes(data)
        found, counts = read(tmp_path, path.name)
        assert found == [] and reasons(counts) == [(0, "what follows cannot be decoded")]


@pytest.mark.parametrize("column", [0, 1, 2])
def test_arrow_column_shorter_than_its_batch_is_quarantined(tmp_path: Path, column: int) -> None:
    """The header of a batch gives its rows, and the length and nulls of each column and of the values in lists."""
    path, table = tmp_path / "in.arrow", pa.table({"text": ["abc", "de", "f"], "n": [[1, 2], [3], [4]]})
    for new in (pa.ipc.new_file, pa.ipc.new_stream):
        with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table)
        data = bytearray(path.read_bytes())
        place = data.index(np.array([3, 0, 3, 0, 4, 0], np.int64).tobytes()) + 16 * column
        data[place : place + 8] = (2).to_bytes(8, "little")
        path.write_bytes(data)
        found, counts = read(tmp_path, path.name)
        assert found == [] and reasons(counts) == [(0, "what follows cannot be decoded")]


def test_arrow_stream_without_its_end_marker_is_truncated(tmp_path: Path) -> None:
    table, path = pa.Table.from_pylist(RECORDS), tmp_path / "in.arrow"
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    data = sink.getvalue().to_pybytes()
    last = data.rindex(b"\xff\xff\xff\xff", 0, len(data) - 8)
    for size, kept in ((len(data) - 8, 200), (last, 150), (len(data) - 3, 200), (last + 20, 150)):
        path.write_bytes(data[:size])
        found, counts = read(tmp_path, path.name)
        assert rows(found) == RECORDS[:kept]
        assert [place for place, _ in reasons(counts)] == [kept]


def test_rows_without_columns_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({}), tmp_path / "in.parquet", store_schema=False)
    data = (tmp_path / "in.parquet").read_bytes()
    footer = b"\x16\x00\x19\x1c\x19\x0c\x16\x00\x16\x00"  # rows, row groups, columns, bytes, rows
    assert footer in data
    (tmp_path / "in.parquet").write_bytes(data.replace(footer, b"\x16\x06\x19\x1c\x19\x0c\x16\x00\x16\x06"))
    batch = pa.record_batch({"n": [1, 2, 3]}).select([])
    with pa.OSFile(str(tmp_path / "in.arrow"), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    for name in ("in.parquet", "in.arrow"):
        with pytest.raises(ColumnError, match=f"{name} has 3 rows but no columns"):
            read(tmp_path, name)


def read_group(
    folder: Path, died: set[tuple[str, int]], skip: dict[tuple[str, int], str]
) -> tuple[list[Any], RecordCounts, list[tuple[int, int]]]:
    """Read in.parquet after deaths at some places; return the rows, the counts and what was announced."""
    held: list[tuple[int, int]] = []
    task = TaskContext("", folder, try_singly=frozenset(died), skip=skip)
    task.hold = lambda file, position, records: held.append((position, records))
    counts = RecordCounts(Tolerance(1000))
    context = ReadContext(Inputs(str(folder)), Config(), counts, task)
    return rows(list(read_range(context, FileRange("in.parquet", "parquet", 0)))), counts, held


def test_rows_are_decoded_one_by_one_after_a_death(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "in.parquet", row_group_size=50)
    with patch.object(row_by_row, "PIECE_BYTES", 900):
        found, counts, held = read_group(tmp_path, {("in.parquet", 100)}, {})
    assert found == RECORDS and not counts.quarantined
    assert {place for place, records in held if records == 1} >= set(range(100, 150))
    assert not {place for place, records in held if records == 1} & set(range(49))


def test_row_that_kills_the_reader_costs_as_few_rows_as_can_be_decoded(tmp_path: Path) -> None:
    """A row to be skipped is decoded and left out later; if that kills again, the rest of its row group is lost."""
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "in.parquet", row_group_size=50)
    place = ("in.parquet", 120)
    passed, counts, held = read_group(tmp_path, set(), {place: "memory"})
    assert (120, 30) in held, "announced with the rows behind it, so that this death is told from the first one"
    assert passed == RECORDS and not counts.quarantined, "route leaves it out"
    assert read_group(tmp_path, {place}, {place: "memory"})[0] == RECORDS, "tried again, with more memory"
    found, counts, _ = read_group(tmp_path, {place, row_by_row.ALL}, {place: "memory"})
    assert found == RECORDS[:120] + RECORDS[150:]
    (one, rest) = counts.quarantined
    assert (one.position, one.records, one.reason) == (120, 1, "memory")
    assert (rest.position, rest.records) == (121, 29) and "after row 120" in rest.reason
    last = ("in.parquet", 149)
    found, counts, _ = read_group(tmp_path, set(), {last: "memory"})
    assert found == RECORDS[:149] + RECORDS[150:] and [entry.records for entry in counts.quarantined] == [1]


def bomb(copies: int, size: int) -> pa.Table:
    """Three rows; the list in the second one holds `copies` of one string of `size` bytes, which is stored once."""
    strings = pa.array(["small", "x" * size])
    values = pa.DictionaryArray.from_arrays(pa.array([0, *[1] * copies, 0], pa.int32()), strings)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, copies + 1, copies + 2], pa.int32()), values)
    return pa.table({"text": ["the first row", "the second row", "the third row"], "list": lists})


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_cell_of_more_than_4_gib_costs_one_record(tmp_path: Path, suffix: str) -> None:
    """Its bytes fill 1 KB (Parquet) or 1 MB (Arrow) of the file, and no machine's memory."""
    source = tmp_path / "source"
    source.mkdir()
    table = bomb(4_500, 1 << 20)
    assert pc.call_function("sum", [pa.array(row_sizes(table))]).as_py() > 4 << 30
    if suffix == "parquet":
        pq.write_table(table, source / "in.parquet", compression="zstd")
    else:
        feather.write_feather(table, str(source / "in.arrow"))
    result = normalize(tmp_path, source, max_quarantined=1)
    assert sorted(result.table().column("text").to_pylist()) == ["the first row", "the third row"]
    assert result.table().column("list").to_pylist() == [["small"], ["small"]]
    assert result.quarantined() == [(f"in.{suffix}", 1)]


@pytest.mark.parametrize("most", [1 << 37, 0])
def test_dictionaries_change_no_value_or_type(tmp_path: Path, most: int) -> None:
    """Rows read one by one, with dictionaries kept or expanded, are those of the batches."""
    table = pa.table(
        {
            "text": [f"text {n % 7}" for n in range(50)],
            "large": pa.array([f"{n % 3}" for n in range(50)], pa.large_string()),
            "bytes": pa.array([b"a", None] * 25),
            "lists": [[{"k": "a", "v": [f"{n % 2}"]}, None] if n % 5 else None for n in range(50)],
            "map": pa.array([[("k", f"{n % 2}")] for n in range(50)], pa.map_(pa.string(), pa.string())),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    with patch.object(row_by_row, "MOST_DICTIONARY_BYTES", most), patch.object(row_by_row, "PIECE_BYTES", 900):
        context = ReadContext(Inputs(str(tmp_path)), Config(), RecordCounts(Tolerance()))
        batches = [list(read_range(context, FileRange("in.parquet", "parquet", 0)))]
        context = replace(context, task=TaskContext("", tmp_path, try_singly=frozenset({("in.parquet", 0)})))
        batches.append(list(read_range(context, FileRange("in.parquet", "parquet", 0))))
    assert rows(batches[0]) == rows(batches[1]) == table.to_pylist()
    assert {chunk.table.schema for chunk in batches[0]} == {chunk.table.schema for chunk in batches[1]}
    assert len(batches[1]) == 2


def test_rows_of_a_batch_before_damage_are_kept(tmp_path: Path) -> None:
    """Two pages of one batch: the rows of the first one are read, although the second one is damaged."""
    path, table = tmp_path / "in.parquet", pa.table({"text": [f"{n} " + "x" * 1000 for n in range(100)]})
    options: dict[str, Any] = {"use_dictionary": False, "compression": "none", "write_page_checksum": True}
    pq.write_table(table, path, data_page_size=40_000, write_batch_size=10, **options)
    data = bytearray(path.read_bytes())
    data[data.index(b"75 xxx")] ^= 0xFF
    path.write_bytes(data)
    found, counts = read(tmp_path, path.name)
    kept = len(rows(found))
    assert 30 <= kept <= 75 and rows(found) == table.slice(0, kept).to_pylist()
    assert reasons(counts) == [(kept, "row group 0 cannot be decoded to its end")]
    assert counts.counters["normalize/quarantined"] == 100 - kept


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_one_large_cell_costs_one_row(tmp_path: Path, suffix: str) -> None:
    """A list of many equal numbers takes a few bytes in a Parquet file."""
    table = pa.table({"text": [f"t{n}" for n in range(9)], "v": [[7] * (100_000 if n == 4 else 1) for n in range(9)]})
    if suffix == "parquet":
        pq.write_table(table, tmp_path / "in.parquet")
    else:
        feather.write_feather(table, str(tmp_path / "in.arrow"))
    with patch.object(base, "CHUNK_BYTES", 1000):
        found, counts = read(tmp_path, f"in.{suffix}", max_document_bytes=1)
    assert [row["text"] for row in rows(found)] == [f"t{n}" for n in range(9) if n != 4]
    assert reasons(counts) == [(4, "longer than max_document_bytes (1000)")]
    assert counts.counters["normalize/records_in"] == 9


def test_dropped_columns_are_not_decoded(tmp_path: Path) -> None:
    table = pa.table({"text": ["good"] * 50, "broken": [f"value {n}" for n in range(50)]})
    pq.write_table(table, tmp_path / "in.parquet", compression="NONE", use_dictionary=False)
    data = (tmp_path / "in.parquet").read_bytes()
    (tmp_path / "in.parquet").write_bytes(
        data.replace(b"value 7", b"\xff" * 7, 1).replace(b"\7\0\0\0value", b"\xff" * 9)
    )
    assert read(tmp_path, "in.parquet")[1].quarantined
    found, counts = read(tmp_path, "in.parquet", drop=("broken",))
    assert len(rows(found)) == 50 and not counts.quarantined
