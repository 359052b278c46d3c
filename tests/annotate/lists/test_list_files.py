"""Lists are read as documented, and mistakes in them are refused with the line."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest
import zstandard

from datakit.annotate.lists.list_files import read_list
from datakit.errors import ChangedInputError, NoInputError, UnreadableError

WHAT = "[annotate.words.lists.x]"


def entries_of(
    content: bytes, folder: Path, kind: str = "words", name: str = "list.txt", sha256: str = ""
) -> list[str]:
    (folder / name).write_bytes(content)
    return read_list(str(folder / name), sha256, kind, WHAT).to_pylist()


def test_comments_blank_lines_and_white_space_are_left_out(tmp_path: Path) -> None:
    content = "\ufeff# comment\n\n  New\t York \r\nC#\n   # comment\nÉté".encode()
    assert entries_of(content, tmp_path) == ["new york", "c#", "été"]
    assert entries_of(content, tmp_path, "substrings") == ["new\t york", "c#", "été"]


def test_domains_are_normalized(tmp_path: Path) -> None:
    content = "Example.COM.\nbücher.example\n[2001:DB8::1]\nİstanbul.com\n".encode()
    assert entries_of(content, tmp_path, "domains") == [
        "example.com", "xn--bcher-kva.example", "[2001:db8::1]", "xn--istanbul-o0e.com"
    ]  # fmt: skip


def test_compressed_files_are_read(tmp_path: Path) -> None:
    frames = zstandard.compress(b"one\n") + zstandard.compress(b"two\n")
    assert entries_of(gzip.compress(b"one\n") + gzip.compress(b"two\n"), tmp_path, name="x.gz") == ["one", "two"]
    assert entries_of(frames, tmp_path, name="x.zst") == ["one", "two"]


@pytest.mark.parametrize("name", ["x.gz", "x.zst"])
@pytest.mark.parametrize("cut", [True, False])
def test_damaged_compressed_files_are_refused(cut: bool, name: str, tmp_path: Path) -> None:
    compress = gzip.compress if name == "x.gz" else zstandard.compress
    content = compress(b"one\n" * 99)[:-9] if cut else b"one"
    with pytest.raises(UnreadableError, match=rf"lists\.x\]: .*{name} cannot be decompressed"):
        entries_of(content, tmp_path, name=name)


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (b"", "words", r"has no entries; add one per line"),
        (b"# only\n\n", "substrings", "has no entries"),
        (b"a\n\xff\n", "words", "line 2 is not valid UTF-8"),
        (b"a\nb\n A \n", "words", r"line 3 has the same entry as .*, line 1; remove it"),
        (b"a b\na  b\nA B\n", "words", r"line 2 has the same entry as .*, line 1 \(2 duplicates in all\)"),
        (b"a.b\nA.b.\n", "domains", "line 2 has the same entry"),
        (b"a\n...\n", "words", "line 2: not a word or phrase; .* use kind = \"substrings\""),
        (b".net\nx -y\nok\n", "words", "line 1 and 1 others: not a word or phrase"),
        (b"a.b\n*.example.com\n", "domains", "line 2: not a domain; write example.com, without scheme"),
        (b"https://a.b/\n", "domains", "line 1: not a domain"),
        (b"a" * 1025, "words", "line 1: longer than 1,024 bytes"),
    ],
)  # fmt: skip
def test_mistakes_are_refused(content: bytes, kind: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=message):
        entries_of(content, tmp_path, kind)


def test_files_of_a_pattern_are_one_list(tmp_path: Path) -> None:
    for name, content in (("a.txt", b"one\n"), ("b.txt", b"two\n")):
        (tmp_path / name).write_bytes(content)
    pattern = str(tmp_path / "*.txt")
    assert read_list(pattern, "", "words", WHAT).to_pylist() == ["one", "two"]
    digests = "".join(f"{hashlib.sha256(one).hexdigest()}\n" for one in (b"one\n", b"two\n"))
    sha256 = hashlib.sha256(digests.encode()).hexdigest()
    assert len(read_list(pattern, sha256.upper(), "words", WHAT)) == 2
    (tmp_path / "b.txt").write_bytes(b"ONE\n")
    with pytest.raises(UnreadableError, match=r"b.txt, line 1 has the same entry as .*a.txt, line 1"):
        read_list(pattern, "", "words", WHAT)
    with pytest.raises(ChangedInputError, match=f"but {sha256} is expected"):
        read_list(pattern, sha256, "words", WHAT)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoInputError, match="no file matches"):
        read_list(str(tmp_path / "gone"), "", "words", WHAT)
