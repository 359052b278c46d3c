"""The hash cache: what it returns, what it drops, and when it must not be trusted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from xxhash import xxh3_128_hexdigest as xxh3

from datakit.download import hashes, listing
from datakit.download.hashes import HashCache
from datakit.download.source_file import SourceFile
from tests.support.normalize.sources import list_source


@pytest.fixture
def settled() -> Iterator[None]:
    """Treat all files as unchanged for long enough, even if the clocks of files and of the process differ by a tick."""
    with patch.object(hashes, "SETTLED_NS", -(10**9)):
        yield


@pytest.mark.usefixtures("settled")
def test_hashes_are_cached_and_dropped(tree: Path, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    first = list_source(str(tree), [], [], HashCache(root, "tree"))
    with patch.object(listing.atomic, "hash_file", side_effect=AssertionError("hashed again")):
        assert list_source(str(tree), [], [], HashCache(root, "tree")) == first
    (tree / "a.jsonl").write_text("A.jsonl")
    os.utime(tree / "a.jsonl", (1, 1))
    (tree / "b/c.jsonl").unlink()
    second = list_source(str(tree), [], [], HashCache(root, "tree"))
    assert second[0] == SourceFile("a.jsonl", 7, xxh3(b"A.jsonl"))
    remembered = json.loads((tmp_path / "root/.cache/hashes-tree.json").read_text())
    assert list(remembered) == ["a.jsonl", "b/d/e.txt", "b/d/h.jsonl.gz"]


@pytest.mark.usefixtures("settled")
def test_restored_mtime_does_not_hide_a_change(tree: Path, tmp_path: Path) -> None:
    """`touch -r` and `rsync --inplace --times` restore it."""
    os.utime(tree / "a.jsonl", ns=(10**18, 10**18))
    root = str(tmp_path / "root")
    list_source(str(tree), [], [], HashCache(root, "tree"))
    with open(tree / "a.jsonl", "r+b") as file:
        file.write(b"A")
    os.utime(tree / "a.jsonl", ns=(10**18, 10**18))
    changed = list_source(str(tree), [], [], HashCache(root, "tree"))
    assert changed[0] == SourceFile("a.jsonl", 7, xxh3(b"A.jsonl"))


@pytest.mark.usefixtures("settled")
def test_older_cache_format_is_replaced(tree: Path, tmp_path: Path) -> None:
    path, state = tmp_path / "root/.cache/hashes-tree.json", os.stat(tree / "a.jsonl")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"a.jsonl": [state.st_size, state.st_mtime_ns, state.st_ino, "0" * 32]}))
    files = list_source(str(tree), [], [], HashCache(str(tmp_path / "root"), "tree"))
    assert files[0].checksum == xxh3(b"a.jsonl")
    assert json.loads(path.read_text())["a.jsonl"][-1] == xxh3(b"a.jsonl")


def test_recently_changed_file_is_not_cached(tree: Path, tmp_path: Path) -> None:
    """A second change within the same clock tick would leave size and times unchanged."""
    for path in tree.rglob("*.*"):
        os.utime(path, (1, 1))
    list_source(str(tree), [], [], HashCache(str(tmp_path), "tree"))
    assert not (tmp_path / ".cache").exists()


def test_clock_of_the_disk_decides_what_changed_recently(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine's clock may be ahead of the file server's."""
    now, now_ns, ahead = time.time, time.time_ns, 3 * 86_400
    monkeypatch.setattr(time, "time", lambda: now() + ahead)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + ahead * 10**9)
    list_source(str(tree), [], [], HashCache(str(tmp_path), "tree"))
    assert not (tmp_path / ".cache").exists()


@pytest.mark.usefixtures("settled")
def test_frozen_cache_never_writes_and_broken_cache_is_ignored(tree: Path, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    list_source(str(tree), [], [], HashCache(root, "tree", frozen=True))
    assert not (tmp_path / "root").exists()
    (tmp_path / "root/.cache").mkdir(parents=True)
    (tmp_path / "root/.cache/hashes-tree.json").write_text("{broken")
    assert len(list_source(str(tree), [], [], HashCache(root, "tree"))) == 4
