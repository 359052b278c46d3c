"""CSV and TSV files."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import ColumnError, UnreadableError
from datakit.normalize.readers import base, csv_records
from datakit.normalize.readers.streams import DamagedStreamError
from tests.support.fuzz.csv_files import Case, check
from tests.support.normalize.readers import read, reasons, rows


def as_csv(records: list[dict[str, str]], delimiter: str = ",", end: str = "\n") -> bytes:
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(records[0]), delimiter=delimiter, lineterminator=end)
    writer.writeheader()
    writer.writerows(records)
    return sink.getvalue().encode()


cells = st.lists(st.sampled_from(["a", '"', ",", "\n", "\t", "é", " ", "\r\n", "1"]), max_size=6).map("".join)


@settings(max_examples=30, deadline=None)
@given(
    records=st.lists(st.fixed_dictionaries({"id": cells, "text": cells}), min_size=1, max_size=12),
    tabs=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    block=st.integers(1, 60),
)
def test_records_round_trip(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, str]], tabs: bool, end: str, block: int
) -> None:
    directory = tmp_path_factory.mktemp("csv")
    name = "in.tsv" if tabs else "in.csv"
    (directory / name).write_bytes(as_csv(records, "\t" if tabs else ",", end))
    with patch.object(csv_records, "CHUNK_BYTES", block), patch.object(base, "CHUNK_BYTES", block):
        found, counts = read(directory, name, quoting="rfc4180")
    assert rows(found) == records and not counts.quarantined


def test_fields_of_tsv_may_begin_with_a_quote(tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text('"id"\ttext\n1\t"never closed\n2\tb"c\n3\t"d"\n')
    found, counts = read(tmp_path, "in.tsv")
    assert [row["text"] for row in rows(found)] == ['"never closed', 'b"c', '"d"']
    assert [row['"id"'] for row in rows(found)] == ["1", "2", "3"] and not counts.quarantined


def test_quote_open_at_the_end_of_the_file_is_damage(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b'id,text\n1,a\n2,"never closed\n' + b"3,c\n" * 2000)
    found, counts = read(tmp_path, "in.csv")
    assert [row["text"] for row in rows(found)] == ["a"]
    assert [place for place, _ in reasons(counts)] == [12]
    assert reasons(counts)[0][1].startswith("the quote at byte 14 is not closed in the file")


@pytest.mark.parametrize("limit", [{"max_field_lines": 50}, {"max_field_bytes": 500}])
@pytest.mark.parametrize("block", [10, 1000, 1 << 20])
def test_overlong_quoted_field_ends_the_file(tmp_path: Path, limit: dict[str, int], block: int) -> None:
    within, over = b"x\n" * 45, b"y\n" * 400
    for name, end in (("closed", b'"\n4,d\n'), ("open", b"")):
        data = b'id,text\n1,a\n2,"' + within + b'"\n3,"' + over + end
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(data))
        with patch.object(csv_records, "CHUNK_BYTES", block), patch.object(base, "CHUNK_BYTES", block):
            found, counts = read(tmp_path, f"{name}.csv.gz", **limit)
        assert [row["text"] for row in rows(found)] == ["a", within.decode()]
        assert [place for place, _ in reasons(counts)] == [data.index(b"3,")]
        quote = data.index(b"3,") + 2
        assert reasons(counts)[0][1].startswith(f"the quote at byte {quote} is not closed within max_field")


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_text_after_a_closing_quote_spoils_only_its_record(tmp_path: Path, block: int) -> None:
    data = b'id,text\n1,a\n2,"open\n3,"hello","x"\n4,"b"\n5,"c" ,d\n6,"e""f"\r\n7,"g"'
    (tmp_path / "in.csv").write_bytes(data)
    with patch.object(csv_records, "CHUNK_BYTES", block), patch.object(base, "CHUNK_BYTES", block):
        found, counts = read(tmp_path, "in.csv")
    assert [row["text"] for row in rows(found)] == ["a", "b", 'e"f', "g"]
    expected = [(data.index(start), "text follows a closing quote") for start in (b"2,", b"5,")]
    assert reasons(counts) == expected


def test_rest_of_a_damaged_stream_is_checked_after_an_open_quote(tmp_path: Path) -> None:
    packed = gzip.compress(b'id,text\n1,a\n2,"' + b"never closed\n" * 400_000)
    (tmp_path / "in.csv.gz").write_bytes(packed[:-8] + bytes(8))
    with pytest.raises(DamagedStreamError, match=r"begins at byte 0 .* damaged"):
        read(tmp_path, "in.csv.gz", max_field_lines=10)


def test_repeated_column_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text,n,n\na,1,2\n")
    with pytest.raises(ColumnError, match=r"in\.csv has two columns named 'n'"):
        read(tmp_path, "in.csv")


def test_bad_records_are_quarantined_by_offset(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbfid,text\n1,a\n2,b,c\n\n3,"x\ny"\n4\n5,z'
    for name, content in (("in.csv", data), ("in.csv.gz", gzip.compress(data))):
        (tmp_path / name).write_bytes(content)
        found, counts = read(tmp_path, name)
        assert [row["text"] for row in rows(found)] == ["a", "x\ny", "z"]
        assert [row["id"] for row in rows(found)] == ["1", "3", "5"], "every column is a string"
        assert reasons(counts) == [(15, "3 fields instead of 2"), (30, "1 fields instead of 2")]
        assert [data[place : place + 1] for block in found for place in block.positions] == [b"1", b"3", b"5"]


@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_wrong_records_may_have_invalid_utf8(chunk: int) -> None:
    """pyarrow raised an error with the record's text, since it hands over wrong records as valid strings."""
    check(Case(body=b"1,\xff\n\xff\n\xc3,b,c\n4,d\n", chunk=chunk))
    check(Case(body=b"\xff", chunk=chunk))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_carriage_return_alone_at_the_end_is_no_record(end: bytes) -> None:
    check(Case(body=b"1,a" + end + b"\r", end=end))
    check(Case(body=b"1,a" + end + b"\r", end=end, chunk=3))


raw_lines = st.lists(
    st.sampled_from(["1,a", '"b",c', '"d\ne",f', '"g""h",i', '"j,k', "l", 'm"n,o', '"p"q,r']), max_size=8
)


@settings(max_examples=100, deadline=None)
@given(raw=raw_lines, block=st.integers(1, 40))
def test_every_published_record_is_one_that_strict_rfc4180_reads(
    tmp_path_factory: pytest.TempPathFactory, raw: list[str], block: int
) -> None:
    directory = tmp_path_factory.mktemp("csv")
    data = "\n".join(["id,text", *raw]) + "\n"
    (directory / "in.csv").write_text(data)
    with patch.object(csv_records, "CHUNK_BYTES", block), patch.object(base, "CHUNK_BYTES", block):
        found, _ = read(directory, "in.csv")
    places = [int(place) for part in found for place in part.positions]
    for place, row in zip(places, rows(found), strict=True):
        assert next(csv.reader(io.StringIO(data[place:], newline=""), strict=True)) == [row["id"], row["text"]]


cell_of_a_long_record = st.sampled_from(
    ["", "a", "bb", '"c"', '"d""e"', '"f\n\r\ng"', '""""', "h" * 40, '"i"j', "k" * 90]
)


@settings(max_examples=100, deadline=None)
@given(
    long=st.lists(cell_of_a_long_record, min_size=30, max_size=60).map(",".join),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    block=st.integers(4, 60),
    tabs=st.booleans(),
)
def test_record_that_is_too_long_costs_one_record(
    tmp_path_factory: pytest.TempPathFactory, long: str, end: str, block: int, tabs: bool
) -> None:
    """Wherever the fields of the long record end in the buffer."""
    if tabs or '"i"j' in long:  # behind text that follows a closing quote, a quote opens nothing
        long = long.replace("\n", "").replace("\r", "")
    if tabs:
        long = long.replace(",", "\t")
    folder, name, mark = tmp_path_factory.mktemp("csv"), "in.tsv" if tabs else "in.csv", "\t" if tabs else ","
    long += mark + "z" * 130
    rows_of = [f"id{mark}text", f"1{mark}before", long, f"2{mark}after", f"3{mark}last"]
    (folder / name).write_bytes((end.join(rows_of) + end).encode())
    with patch.object(csv_records, "CHUNK_BYTES", block), patch.object(base, "CHUNK_BYTES", block):
        found, counts = read(folder, name, max_document_bytes=120)
    assert [row["text"] for row in rows(found)] == ["before", "after", "last"]
    assert reasons(counts) == [
        (len(rows_of[0]) + len(rows_of[1]) + 2 * len(end), "longer than max_document_bytes (120)")
    ]


def test_header_that_is_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(",".join(f"column{n}" for n in range(50)) + "\n1,2\n")
    with (
        patch.object(csv_records, "CHUNK_BYTES", 40),
        patch.object(base, "CHUNK_BYTES", 40),
        pytest.raises(UnreadableError, match=r"the header of .* exceeds"),
    ):
        read(tmp_path, "in.csv", max_document_bytes=100)


def test_header_that_python_cannot_read_is_refused_by_name(tmp_path: Path) -> None:
    """Python's csv module accepts fields of 128 KiB."""
    (tmp_path / "in.csv").write_text(f"id,text,{'x' * 200_000}\n1,2,3\n")
    with pytest.raises(UnreadableError, match=r"in\.csv has a header that cannot be read"):
        read(tmp_path, "in.csv")
