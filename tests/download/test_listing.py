"""Listing a source: URLs, patterns, checksums, and errors that say what exists instead."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO
from unittest.mock import patch

import fsspec
import pytest
from xxhash import xxh3_128_hexdigest as xxh3

from datakit.download import listing
from datakit.download.listing import listing_digest, pinned, source_base
from datakit.download.source_file import SourceFile
from datakit.errors import ChangedInputError, NoInputError, UnreadableError
from datakit.storage.urls import FileInfo
from tests.support.normalize.sources import list_source


@pytest.mark.parametrize(
    ("where", "include", "exclude", "expected"),
    [
        ("", [], [], ["a.jsonl", "b/c.jsonl", "b/d/e.txt", "b/d/h.jsonl.gz"]),
        ("", ["*.jsonl"], [], ["a.jsonl", "b/c.jsonl"]),
        ("", ["/*.jsonl"], [], ["a.jsonl"]),
        ("", ["**/*.jsonl", "*.txt"], [], ["a.jsonl", "b/c.jsonl", "b/d/e.txt"]),
        ("", ["b/*"], [], ["b/c.jsonl"]),
        ("", ["b/**"], ["*.gz"], ["b/c.jsonl", "b/d/e.txt"]),
        ("", [], ["b/**"], ["a.jsonl"]),
        ("", ["[ab].jsonl", "?.txt"], [], ["a.jsonl", "b/d/e.txt"]),
        ("/b", [], [], ["c.jsonl", "d/e.txt", "d/h.jsonl.gz"]),
        ("/b/*", [], [], ["c.jsonl"]),
        ("/*/*.jsonl", [], [], ["b/c.jsonl"]),
        ("/**/*.jsonl*", [], [], ["a.jsonl", "b/c.jsonl", "b/d/h.jsonl.gz"]),
        ("/**/*.jsonl*", ["*.gz"], [], ["b/d/h.jsonl.gz"]),
        ("/b/c.jsonl", [], [], ["c.jsonl"]),
    ],
)
def test_url_and_patterns_select_files(
    tree: Path, where: str, include: list[str], exclude: list[str], expected: list[str]
) -> None:
    url = f"{tree}{where}"
    files = list_source(url, include, exclude)
    assert [file.path for file in files] == expected
    for file in files:
        content = (Path(source_base(url)) / file.path).read_bytes()
        assert (file.size, file.checksum) == (len(content), xxh3(content))


def test_existing_name_with_glob_characters_is_literal(tmp_path: Path) -> None:
    for name in ("[x].txt", "x.txt", "50% *.txt"):
        (tmp_path / name).write_text(name)
    assert [file.path for file in list_source(str(tmp_path / "[x].txt"), [], [])] == ["[x].txt"]
    assert [file.path for file in list_source(str(tmp_path / "50% *.txt"), [], [])] == ["50% *.txt"]


def test_linked_directories_are_followed_once(tree: Path) -> None:
    (tree / "link").symlink_to(tree / "b")
    (tree / "b" / "back").symlink_to(tree)
    assert [file.path for file in list_source(str(tree), ["*.jsonl"], [])] == ["a.jsonl", "b/c.jsonl", "link/c.jsonl"]
    (tree / "dangling.jsonl").symlink_to(tree / "nowhere")
    with pytest.raises(UnreadableError, match=r"dangling\.jsonl is a link to a file that does not exist"):
        list_source(str(tree), [], [])


def test_named_pipe_is_skipped_and_named(tree: Path) -> None:
    os.mkfifo(tree / "pipe.jsonl")
    skipped: list[str] = []
    files = list_source(str(tree), ["*.jsonl"], [".*", "**/.hidden/**"], on_skipped=skipped.append)
    assert [file.path for file in files] == ["a.jsonl", "b/c.jsonl"]
    assert skipped == ["1 entry that cannot be read (pipe.jsonl is a named pipe)"]
    for url in (str(tree / "pipe.jsonl"), str(tree / "pipe*")):
        with pytest.raises(NoInputError, match="is a named pipe"):
            list_source(url, [], [])


def test_named_pipe_that_replaces_a_listed_file_is_refused(tree: Path) -> None:
    """Opening it does not wait for a writer."""
    regular = listing.globs.regular

    def replaced(files: Sequence[FileInfo]) -> tuple[list[FileInfo], str]:
        found = regular(files)
        (tree / "a.jsonl").unlink()
        os.mkfifo(tree / "a.jsonl")
        return found

    with (
        patch.object(listing.globs, "regular", replaced),
        pytest.raises(UnreadableError, match=r"a\.jsonl is a named pipe, not a file; copy the data to a file"),
    ):
        list_source(str(tree), ["*.jsonl"], [])


def test_excluded_dangling_link_stops_nothing(tree: Path) -> None:
    (tree / "dangling.jsonl").symlink_to(tree / "nowhere")
    assert "a.jsonl" in [file.path for file in list_source(str(tree), [], ["dangling.*"])]


def test_stdlib_placeholder_is_a_source() -> None:
    files = list_source("{stdlib}/json", ["*.py"], [])
    assert "decoder.py" in [file.path for file in files]
    assert source_base("{stdlib}/json") == f"{sysconfig.get_paths()['stdlib']}/json"


@pytest.mark.parametrize(
    ("where", "include", "words"),
    [
        (
            "",
            ["*.parquet"],
            r"no files match \*\.parquet; .*tree contains 2 \.jsonl, 1 \.txt, 1 \.gz, e\.g",
        ),
        ("/*.parquet", [], r"no files; .*tree contains 2 \.jsonl"),
        ("e", [], r"no files; .* exists, but it has no 'treee'; did you mean 'tree'\?"),
        ("/b/dd/x/y", [], r"no files; .*/b exists, but it has no 'dd'"),
        ("/b/.hidden/..", ["q"], r"no files match q"),
    ],
)
def test_empty_selection_says_what_exists(tree: Path, where: str, include: list[str], words: str) -> None:
    with pytest.raises(NoInputError, match=words):
        list_source(f"{tree}{where}", include, [])


def test_digest_ignores_the_location(tree: Path, tmp_path: Path) -> None:
    before = list_source(str(tree), [], [])
    tree.rename(tmp_path / "moved")
    after = list_source(str(tmp_path / "moved"), [], [])
    assert listing_digest(before) == listing_digest(after)
    (tmp_path / "moved" / "a.jsonl").write_text("A.jsonl")
    assert listing_digest(list_source(str(tmp_path / "moved"), [], [])) != listing_digest(before)


def test_hub_url_is_pinned_to_revision() -> None:
    assert pinned("hf://datasets/org/name", "abc") == "hf://datasets/org/name@abc"
    assert pinned("hf://datasets/org/name@main/data/*", "abc") == "hf://datasets/org/name@abc/data/*"
    assert pinned("hf://datasets/org/name@refs/pr/1/data", "a/b") == "hf://datasets/org/name@a%2Fb/data"
    assert pinned("s3://bucket/key", "abc") == "s3://bucket/key"
    assert pinned("hf://datasets/org/name", None) == "hf://datasets/org/name"


def test_file_changed_while_hashed_is_refused(tree: Path) -> None:
    hash_open = listing.atomic.hash_open

    def appended(file: BinaryIO, check: Callable[[], None]) -> tuple[str, int]:
        found = hash_open(file, check)
        path = Path(os.readlink(f"/proc/self/fd/{file.fileno()}"))
        if path.name == "a.jsonl":
            path.write_text("a.jsonl and more")
        return found

    with patch.object(listing.atomic, "hash_open", appended):
        with pytest.raises(ChangedInputError, match=r"a\.jsonl changed while it was being listed; run again"):
            list_source(str(tree), [], [])
        assert list_source(str(tree), [], ["a.jsonl"])


def test_store_without_checksums_is_hashed(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe("/plain/a.txt", b"content")
    files = list_source("memory://plain", [], [])
    assert files == [SourceFile("a.txt", 7, xxh3(b"content"))]
    fsspec.filesystem("memory").rm("/plain", recursive=True)
    with pytest.raises(NoInputError, match="empty or does not exist; check the URL and the credentials"):
        list_source("memory://plain", [], [])
