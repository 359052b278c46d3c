"""File formats: by name, and checked against the first bytes."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from datakit.errors import UnreadableError
from datakit.normalize.formats import format_of
from tests.support.normalize.readers import lines, read, rows
from tests.support.normalize.sources import normalize


def test_unknown_extension_needs_a_format(tmp_path: Path) -> None:
    (tmp_path / "in.qqq").write_text("some text")
    with pytest.raises(UnreadableError, match=r"in\.qqq has an unknown format .*set the source's `format`"):
        normalize(tmp_path / "one", tmp_path / "in.qqq")
    assert [row["text"] for row in normalize(tmp_path / "two", tmp_path / "in.qqq", format="text").rows()] == [
        "some text"
    ]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("in.jsonl.gz", lines(), "is not a gzip file"),
        ("in.jsonl.zst", gzip.compress(lines()), "is not a zstd file: its first bytes indicate gzip"),
        ("in.jsonl", gzip.compress(lines()), "contains gzip data"),
        ("in.jsonl", b"\xff\xfe{\0}\0\n\0", "contains UTF-16 text"),
        ("in.jsonl.gz", b"", r"is empty \(0 bytes\)"),
        ("in.parquet", lines(), "is not a parquet file"),
        ("in.arrow", lines(), "is not an arrow file"),
        ("in.tsv", b"PK\x03\x04\x14\0", "in.tsv is a zip archive, .*; unpack it, or exclude it"),
        ("in.jsonl", b"WARC/1.1\r\n", r"in.jsonl is a web archive \(WARC\), .*`format` to \"warc\""),
        ("in.csv", b"a.txt".ljust(257, b"\0") + b"ustar\x0000", "in.csv is a tar archive"),
        ("in.parquet", b"%PDF-1.7\n", "in.parquet is a PDF document"),
    ],
    ids=[
        "plain",
        "gzip-as-zstd",
        "gzip",
        "utf-16",
        "empty",
        "parquet",
        "arrow",
        "zip",
        "warc",
        "tar",
        "pdf",
    ],  # gzip holds the time
)
def test_file_of_another_kind_is_refused(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UnreadableError, match=words):
        read(tmp_path, name)


@pytest.mark.parametrize(
    ("name", "words"),
    [("in.tar.gz", "a tar archive"), ("in.tgz", "a tar archive"), ("in.zip", "a zip archive"),
     ("in.ZIP", "a zip archive"), ("in.warc.wat.gz", "the metadata of a web"), ("in.docx", "an office document")],
)  # fmt: skip
def test_archive_is_named_as_what_it_is(name: str, words: str) -> None:
    with pytest.raises(UnreadableError, match=rf"{re.escape(name)} is {words}.*by its name, .*(unpack|extract|read) "):
        format_of(name)


def test_text_may_start_like_a_magic_number(tmp_path: Path) -> None:
    for name, text in (
        ("a.txt", "PAR1 is a word"),
        ("b.txt", "BZh, he said"),
        ("c.txt", "ARROW1 too"),
        ("d.txt", "WARC/2"),
    ):
        (tmp_path / name).write_text(text)
        found, counts = read(tmp_path, name)
        assert rows(found) == [{"text": text.encode(), "id": name}] and not counts.quarantined
