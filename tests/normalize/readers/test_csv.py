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

from datakit.errors import ColumnError
from datakit.normalize.readers import csv as csv_reader
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
    with patch.object(csv_reader, "CHUNK_BYTES", block):
        found, counts = read(directory, name)
    assert rows(found) == records and not counts.quarantined


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


def test_unclosed_quote_ends_the_file(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b'id,text\n1,a\n2,"never closed\n' + b"3,c\n" * 2000)
    with patch.object(csv_reader, "CHUNK_BYTES", 1000):
        found, counts = read(tmp_path, "in.csv", max_document_bytes=3000)
    assert [row["text"] for row in rows(found)] == ["a"]
    assert [place for place, _ in reasons(counts)] == [12]
