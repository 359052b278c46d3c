"""Lists of files are read completely, and their entries cannot leave the source's folder."""

from __future__ import annotations

import gzip

import pytest

from datakit.download.web import url_list
from datakit.download.web.url_list import paths_of, read_list
from datakit.errors import RecipeError, UnreadableError

BASE = "https://host/a"


def read(data: bytes) -> list[str]:
    return read_list("list.txt", lambda place: data)


def test_text_files_have_one_entry_per_line() -> None:
    text = b"\xef\xbb\xbf# files\n\nx.gz\r\n  b/y.gz  \nhttps://other/z.gz"
    assert read(text) == read(gzip.compress(text)) == ["x.gz", "b/y.gz", "https://other/z.gz"]
    assert read_list(("x", "y"), lambda place: b"") == ["x", "y"]


def test_unreadable_lists_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreadableError, match=r"the list list\.txt is not UTF-8 text \(byte 1\)"):
        read(b"a\xff")
    for damage in (
        gzip.compress(b"x.gz\n" * 99)[:-9],
        gzip.compress(b"x")[:3],
        gzip.compress(b"x" * 99)[:-5] + b"12345",
    ):
        with pytest.raises(UnreadableError, match="is not a complete gzip file"):
            read(damage)
    monkeypatch.setattr(url_list, "MOST_LIST_BYTES", 100)
    with pytest.raises(UnreadableError, match="has more than 100 bytes; divide it between sources"):
        read(gzip.compress(b"x" * 5000))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("../../etc/passwd", "cannot be a file's URL"),
        ("https://other/../etc/passwd", "cannot be a file's URL"),
        ("a//b", "cannot be a file's URL"),
        ("a b", "percent-encode it"),
        ("s3://bucket/a", "is not an http:// or https:// URL; leave it out"),
        ("file:///etc/passwd", "is not an http:// or https:// URL"),
        ("https://user:word@other/a", "contains a user name or a password"),
        ("https://other/a?X-Amz-Signature=12", "has a query string or a fragment.*make it a source of its own"),
        ("", "cannot be a file's URL"),
    ],
)
def test_unusable_entries_are_refused(entry: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words) as refused:
        paths_of(BASE, ["x", entry], "the list urls.txt")
    assert str(refused.value).startswith("the list urls.txt: ")
    assert "Signature" not in str(refused.value) and "word@" not in str(refused.value)


def test_files_that_are_listed_twice_are_named() -> None:
    with pytest.raises(RecipeError, match=r"1 files are listed twice \(x\)"):
        paths_of(BASE, ["x", "y", f"{BASE}/x"], "list")
