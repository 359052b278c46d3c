"""Compares the CSV reader with Python's `csv`, record by record: values, offsets, and what is quarantined."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pyarrow as pa
from hypothesis import strategies as st

from datakit.normalize.readers import base, csv_records
from datakit.normalize.readers.base import Chunk
from tests.support.normalize.readers import read

MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Case:
    """A file without its header, and how it is read. chunk: the size of the reader's chunks in bytes."""

    body: bytes
    tabs: bool = False
    quoting: str = "auto"
    end: bytes = b"\n"
    mark: bool = False
    packed: bool = False
    chunk: int = 1 << 20

    @property
    def delimiter(self) -> str:
        return "\t" if self.tabs else ","

    @property
    def quoted(self) -> bool:
        return self.quoting == "rfc4180" or (self.quoting == "auto" and not self.tabs)

    @property
    def data(self) -> bytes:
        return (MARK if self.mark else b"") + self.delimiter.join(("id", "text")).encode() + self.end + self.body


def check(case: Case) -> None:
    """Read the file in chunks; every record, offset and refusal is what `csv` says of the line at that place."""
    good, bad = model(case)
    with (
        TemporaryDirectory() as folder,
        patch.object(csv_records, "CHUNK_BYTES", case.chunk),
        patch.object(base, "CHUNK_BYTES", case.chunk),
    ):
        name = ("in.tsv" if case.tabs else "in.csv") + (".gz" if case.packed else "")
        (Path(folder) / name).write_bytes(gzip.compress(case.data) if case.packed else case.data)
        found, counts = read(Path(folder), name, quoting=case.quoting)
    ours = {place: fields for chunk in found for place, fields in _fields(chunk)}
    assert len(ours) == sum(chunk.table.num_rows for chunk in found), "two records at one offset"
    assert ours == good
    assert sorted(record.position for record in counts.quarantined) == bad


def _fields(chunk: Chunk) -> Iterator[tuple[int, list[str]]]:
    """Offset and fields of each record. Invalid UTF-8 in texts is left to the text rules, which replace it."""
    columns = [chunk.table.column(name).cast(pa.binary()).to_pylist() for name in ("id", "text")]
    for place, *fields in zip(chunk.positions.tolist(), *columns, strict=True):
        yield place, [field.decode("utf-8", "replace") for field in fields]


def model(case: Case) -> tuple[dict[int, list[str]], list[int]]:
    """Read record by record with `csv`, strictly. Returns the fields by offset, and the offsets of what is refused."""
    good: dict[int, list[str]] = {}
    bad: list[int] = []
    data = case.data.decode("latin-1")
    place = len(MARK) * case.mark + len("id,text") + len(case.end)
    while place < len(data):
        source = io.StringIO(data[place:], newline="")
        quoting = csv.QUOTE_MINIMAL if case.quoted else csv.QUOTE_NONE
        reader = csv.reader(source, delimiter=case.delimiter, quoting=quoting, strict=True)
        try:
            fields = next(reader)
        except csv.Error as error:
            fields = None
            if "unexpected end" in str(error):
                bad.append(place)
                break
        if fields is None or len(fields) not in (0, 2):
            bad.append(place)
        elif fields:
            good[place] = [field.encode("latin-1").decode("utf-8", "replace") for field in fields]
        place += source.tell()
    return good, bad


CELLS = st.lists(
    st.sampled_from([b"a", b'"', b",", b"\t", "é".encode(), b" ", b"1", b"\\", b"'", b"\xff", b"\xc3", b"NA"]),
    max_size=5,
).map(b"".join)
QUOTED = st.tuples(CELLS, st.sampled_from([b"", b"\n", b"\r\n", b"\r", b'""']), CELLS).map(
    lambda parts: b'"' + parts[0].replace(b'"', b'""') + parts[1] + parts[2].replace(b'"', b'""') + b'"'
)
PLAIN = CELLS.map(lambda cell: cell.replace(b'"', b"").replace(b",", b"").replace(b"\t", b""))
ODD = st.sampled_from([b'"', b'"a"b', b'a"b"', b' "a"', b'"a" ', b'"a""', b'""', b'"""', b"\r", b""]) | CELLS
FIELDS = st.one_of(PLAIN, PLAIN, QUOTED, QUOTED, ODD)


@st.composite
def _bodies(draw: st.DrawFn, delimiter: bytes, end: bytes) -> bytes:
    counts = st.sampled_from([2] * 8 + [0, 1, 3])
    records = draw(st.lists(counts.flatmap(lambda n: st.lists(FIELDS, min_size=n, max_size=n)), max_size=10))
    ends = [draw(st.sampled_from([end] * 6 + [b"\n", b"\r\n", b"\r"])) for _ in records]
    body = b"".join(delimiter.join(fields) + line_end for fields, line_end in zip(records, ends, strict=True))
    return body if draw(st.booleans()) else body[: -len(ends[-1])] if ends else body


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    tabs, end = draw(st.booleans()), draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    quoting = draw(st.sampled_from(["auto", "rfc4180", "none"]))
    body = draw(_bodies(b"\t" if tabs else b",", end))
    chunk = draw(st.integers(1, 80) | st.just(1 << 20))
    return Case(body, tabs, quoting, end, draw(st.booleans()), draw(st.booleans()), chunk)


CASES = _cases()
