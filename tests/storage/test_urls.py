"""Files are listed, read and removed alike on a disk and on S3."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from datakit.errors import NotFoundError, RootError, UnreadableError
from datakit.storage import atomic, removal, urls
from datakit.storage.parquet import open_shard
from tests.support.s3 import s3_root


def test_listing_is_deep_sorted_without_dot_files(root: str) -> None:
    for name in ("b/2", "b/1", "a", "c/d/e", ".hidden", "c/.tmp-x-y", ".folder/file"):
        atomic.commit_bytes(name.encode(), urls.join(root, name))
    found = urls.listing(root)
    assert [info.path for info in found] == ["a", "b/1", "b/2", "c/d/e"]
    assert [info.size for info in found] == [1, 3, 3, 5]
    assert [urls.read_bytes(info.url) for info in found] == [b"a", b"b/1", b"b/2", b"c/d/e"]
    assert urls.listing(urls.join(root, "nothing")) == []


def test_listing_and_removal_go_beyond_a_page(tmp_path: Path) -> None:
    """S3 lists and removes at most 1,000 keys per request."""
    for number in range(2_005):
        (tmp_path / f"{number:04d}").touch()
    with s3_root(holding=str(tmp_path)) as root:
        assert [info.path for info in urls.listing(root)] == [f"{number:04d}" for number in range(2_005)]
        removal.remove_tree(root)
        assert urls.listing(root) == []


def test_ranges_are_exact_and_end_with_the_file(root: str) -> None:
    url, empty = urls.join(root, "file"), urls.join(root, "empty")
    atomic.commit_bytes(b"0123456789", url)
    atomic.commit_bytes(b"", empty)
    ranges = [(0, 4), (3, 3), (4, 7), (7, 100), (10, 12), (50, 60), (2, None), (0, None)]
    got = [urls.read_range(url, start, stop) for start, stop in ranges]
    assert got == [b"0123", b"", b"456", b"789", b"", b"", b"23456789", b"0123456789"]
    assert urls.read_bytes(empty) == urls.read_range(empty, 0, 10) == b""
    with urls.open_read(url) as file:
        file.seek(6)
        assert file.read() == b"6789"


def test_missing_file_is_named(root: str) -> None:
    url = urls.join(root, "absent.parquet")
    readers: list[Callable[[str], object]] = [urls.size, urls.read_bytes, urls.open_read, atomic.hash_url, open_shard]
    for read in readers:
        with pytest.raises(NotFoundError, match=r"absent\.parquet does not exist"):
            read(url)
    assert not urls.exists(url)
    removal.remove(url)
    removal.remove_tree(url)


def test_unknown_protocol_is_named() -> None:
    with pytest.raises(RootError, match=r"unknown protocol nope://; use a path, file://, s3:// or gs://"):
        urls.read_bytes("nope://bucket/file")


@pytest.mark.parametrize("read", [urls.open_read, urls.read_bytes, atomic.hash_url])
def test_named_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path, read: Callable[[str], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableError, match="pipe is a named pipe, not a file"):
        read(str(tmp_path / "pipe"))
