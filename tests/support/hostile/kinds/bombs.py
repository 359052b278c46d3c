"""Small files that unpack to much: compressed lines, empty lines, nulls, dictionaries and deep structures."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import lzma

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.support.hostile.case import TOLERANT, Case, Limits, done, refused, texts
from tests.support.hostile.kinds.columnar import arrow

GOOD = b'{"text": "DOCUMENT"}\n'
HUGE = Limits(memory=1600 << 20)


def line_of(megabytes: int, compress: str) -> bytes:
    """Return a compressed JSON line whose text has this many megabytes, after a good line."""
    if compress == "gz":
        out = io.BytesIO()
        with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as file:
            _write(file, megabytes)
        return out.getvalue()
    if compress == "zst":
        out = io.BytesIO()
        with zstandard.ZstdCompressor().stream_writer(out, closefd=False) as file:
            _write(file, megabytes)
        return out.getvalue()
    packer = bz2.BZ2Compressor(1) if compress == "bz2" else lzma.LZMACompressor(preset=0)
    pieces = [packer.compress(b'{"text": "'), *(packer.compress(b"a" * (1 << 20)) for _ in range(megabytes))]
    return b"".join([*pieces, packer.compress(b'"}\n' + GOOD), packer.flush()])


def _write(file: object, megabytes: int) -> None:
    write = file.write  # type: ignore[attr-defined]
    write(GOOD + b'{"text": "')
    for _ in range(megabytes):
        write(b"a" * (1 << 20))
    write(b'"}\n')


def repeated(data: bytes, count: int) -> bytes:
    """Return the data, many times, as a gzip file."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6) as file:
        for _ in range(count):
            file.write(data)
    return out.getvalue()


def nulls(rows: int) -> bytes:
    """Return a small Parquet file of so many nulls."""
    out = io.BytesIO()
    pq.write_table(pa.table({"text": pa.nulls(rows, pa.string())}), out, row_group_size=1 << 20)
    return out.getvalue()


def dictionary(rows: int, megabytes: int) -> bytes:
    """Return a small Parquet file whose rows all have the same huge text."""
    column = pa.DictionaryArray.from_arrays(
        pa.array([0] * rows, pa.int32()), pa.array(["DOCUMENT" * (megabytes << 17)])
    )
    out = io.BytesIO()
    pq.write_table(pa.table({"text": column, "n": pa.array(range(rows))}), out, compression="zstd",
                   dictionary_pagesize_limit=1 << 28)  # fmt: skip
    return out.getvalue()


def equal_rows(rows: int) -> bytes:
    """Return a small Parquet file of rows that have the same text of a kilobyte and different numbers."""
    out = io.BytesIO()
    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["a" * 1000]))
    pq.write_table(pa.table({"text": text, "n": pa.array(range(rows))}), out, compression="zstd")
    return out.getvalue()


def arrow_dictionary(rows: int, megabytes: int) -> bytes:
    """Return the same as an Arrow file."""
    column = pa.DictionaryArray.from_arrays(
        pa.array([0] * rows, pa.int32()), pa.array(["DOCUMENT" * (megabytes << 17)])
    )
    return arrow(pa.table({"text": column, "n": pa.array(range(rows))}), "zstd")


def arrow_zeros(megabytes: int) -> bytes:
    """Return an Arrow file with one compressed text of zeros."""
    return arrow(pa.table({"text": pa.array([bytes(megabytes << 20)], pa.binary())}), "zstd")


LIMITED = TOLERANT + "[limits]\nmax_expansion = 10\nexpansion_floor_bytes = 33554432\n"
EXPANSIONS = (
    Case("bomb-parquet-dictionary", texts(("a.parquet", lambda: dictionary(1000, 4)), more=LIMITED),
         refused("a.parquet", "max_expansion"), limits=HUGE),
    Case("bomb-arrow-dictionary", texts(("a.arrow", lambda: arrow_dictionary(1000, 4)), more=LIMITED),
         refused("a.arrow", "max_expansion"), limits=HUGE),
    Case("bomb-parquet-of-equal-rows", texts(("a.parquet", lambda: equal_rows(500_000)), more=LIMITED),
         refused("a.parquet", "max_expansion"), limits=HUGE),
)  # fmt: skip
CASES = (
    *(EXPANSIONS if importlib.util.find_spec("datakit.engine.disk_limits") else ()),
    *(
        Case(
            f"bomb-line-{kind}",
            texts((f"a.jsonl.{kind}", lambda kind=kind: line_of(64, kind))),
            done(1, quarantined=1),
            limits=HUGE,
        )
        for kind in ("gz", "zst", "bz2", "xz")
    ),
    Case(
        "bomb-line-of-600-mb-within-default-limits",
        texts(("a.jsonl.gz", lambda: line_of(600, "gz")), more="[normalize]\nmax_quarantined = 1\n"),
        done(1, quarantined=1),
        limits=Limits(memory=3 << 30),
    ),
    Case(
        "bomb-text-of-64-mb",
        texts(("a.txt.gz", lambda: repeated(b"a" * (1 << 20), 64)), ("b.txt", b"DOCUMENT")),
        done(1, quarantined=1),
        limits=HUGE,
    ),
    Case(
        "bomb-empty-lines",
        texts(("a.jsonl.gz", lambda: gzip.compress(GOOD) + repeated(b"\n" * (1 << 20), 200))),
        done(1),
        limits=HUGE,
    ),
    Case(
        "bomb-million-empty-objects",
        texts(("a.jsonl.gz", lambda: gzip.compress(GOOD) + repeated(b"{}\n" * 100_000, 10))),
        done(1, missing=1_000_000),
        limits=HUGE,
    ),
    Case(
        "bomb-csv-field",
        texts(("a.csv.gz", lambda: gzip.compress(b"text\nDOCUMENT\n") + repeated(b"a" * (1 << 20), 64))),
        done(1, quarantined=1),
        limits=HUGE,
    ),
    Case(
        "bomb-csv-quote-never-closed",
        texts(("a.csv.gz", lambda: gzip.compress(b'text\nDOCUMENT\n"') + repeated(b"a\n" * (1 << 19), 64))),
        refused("is not closed within"),
        limits=HUGE,
    ),
    Case(
        "bomb-csv-header",
        texts(("a.csv.gz", lambda: repeated(b"a" * (1 << 20), 64))),
        refused("a.csv.gz", code=(2, 3)),
        limits=HUGE,
    ),
    Case(
        "bomb-parquet-nulls",
        texts(("a.parquet", lambda: nulls(20_000_000)), ("b.jsonl", GOOD)),
        done(1, missing=20_000_000),
        limits=HUGE,
    ),
    Case(
        "bomb-arrow-zeros",
        texts(("a.arrow", lambda: arrow_zeros(64)), ("b.jsonl", GOOD)),
        done(1, quarantined=1),
        limits=HUGE,
    ),
    Case(
        "bomb-inspect-of-a-line",
        texts(("a.jsonl.gz", lambda: line_of(600, "gz"))),
        refused(code=(0, 2)),
        words=("inspect", "texts"),
        limits=HUGE,
        shows_text=True,
    ),
    Case(
        "bomb-plan-of-a-line",
        texts(("a.jsonl.gz", lambda: line_of(600, "gz"))),
        refused(code=(0, 2)),
        words=("plan", "r.toml"),
        limits=HUGE,
    ),
)
