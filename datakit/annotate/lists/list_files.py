"""Reads lists: text files with one entry per line, in UTF-8, plain or compressed with gzip (`.gz`) or zstd (`.zst`).

Lines that are blank or begin with `#` are left out, as is white space around an entry. An empty list, an entry that can
never match and an entry that occurs twice are refused, because each of them is a mistake that would otherwise go
unnoticed. Messages name the lines.

Cost: 1 to 2 CPU-seconds and about 250 MB per million entries, once in a driver (to check the list before a run) and
once in each fork server. Only the index stays in memory.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import re
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import zstandard

from datakit.annotate.input_files import check_sha256, find_files, sha256_of_digests
from datakit.annotate.lists.characters import SPACES, list_table, lowercase
from datakit.annotate.lists.hosts import is_host, normal_host
from datakit.annotate.lists.symbol_kernels import LONGEST_ENTRY
from datakit.errors import UnreadableError
from datakit.regular_files import open_regular
from datakit.text.unicode_words import ALONE, WORD

DOMAINS, SUBSTRINGS, WORDS = "domains", "substrings", "words"
_GAPS = re.compile(f"[{re.escape(SPACES)}]+")
_SPACE, _NEWLINE = 0x20, 0x0A


def read_list(path: str, sha256: str, kind: str, what: str) -> pa.Array:
    """Return the entries of a list, large_string, in the form in which they are searched for. path, sha256: see
    `input_files.py`; "" permits any hash. what: a description for messages, such as "[annotate.words.lists.adult]".
    Raises NoInputError, ChangedInputError, and UnreadableError for anything else that is wrong with the files.
    """
    found = find_files(path, what)
    contents = [_content(one, what) for one in found]
    if sha256:
        check_sha256(sha256_of_digests([hashlib.sha256(one).hexdigest() for one in contents]), sha256, path, what)
    entries: list[str] = []
    places: list[tuple[str, list[int]]] = []
    for name, content in zip(found, contents, strict=True):
        text = _decoded(_decompressed(content, name, what), name, what)
        lines, numbers = _entries(text if kind == DOMAINS else lowercase(text))
        if kind == DOMAINS:
            lines = _domains(lines, numbers, name, what)
        elif kind == WORDS:
            lines = [_GAPS.sub(" ", line) for line in lines]
        _check(lines, numbers, kind, name, what)
        entries += lines
        places.append((name, numbers))
    if not entries:
        raise UnreadableError(f"{what}: {path} has no entries; add one per line, or remove the table")
    _refuse_duplicates(entries, places, what)
    return pa.array(entries, pa.large_string())


def _content(path: str, what: str) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError as error:
        raise UnreadableError(f"{what}: {path} cannot be read: {error.strerror}") from error


def _decompressed(content: bytes, path: str, what: str) -> bytes:
    try:
        if path.endswith(".gz"):
            return gzip.decompress(content)
        return b"".join(_zstd_frames(content)) if path.endswith(".zst") else content
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise UnreadableError(
            f"{what}: {path} cannot be decompressed ({type(error).__name__}); check that it is complete and has the "
            "format of its name"
        ) from error


def _zstd_frames(content: bytes) -> Iterator[bytes]:
    while content:
        frame = zstandard.ZstdDecompressor().decompressobj()
        yield frame.decompress(content)
        if not frame.eof:
            raise EOFError
        content = frame.unused_data


def _decoded(content: bytes, path: str, what: str) -> str:
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnreadableError(f"{what}: {path}, line {line} is not valid UTF-8; convert the file to UTF-8") from None


def _entries(text: str) -> tuple[list[str], list[int]]:
    """Return the entries of a file, and the numbers of their lines, from 1."""
    lines = [line.strip(SPACES) for line in text.split("\n")]
    kept = [bool(line) and line[0] != "#" for line in lines]
    return [*itertools.compress(lines, kept)], [*itertools.compress(range(1, len(lines) + 1), kept)]


def _domains(lines: list[str], numbers: list[int], path: str, what: str) -> list[str]:
    hosts = [normal_host(line) for line in lines]
    wrong = [number for host, number in zip(hosts, numbers, strict=True) if not is_host(host)]
    _refuse(wrong, path, what, "not a domain", "write example.com, without scheme, path, port and `*`")
    return hosts


def _check(lines: list[str], numbers: list[int], kind: str, path: str, what: str) -> None:
    long = [number for line, number in zip(lines, numbers, strict=True) if len(line.encode()) > LONGEST_ENTRY]
    _refuse(long, path, what, f"longer than {LONGEST_ENTRY:,} bytes", "shorten or remove the entry")
    if kind == WORDS:
        wrong = [numbers[i] for i in _without_words(lines)]
        advice = 'each part of a phrase must begin with a letter or digit; for other entries, use kind = "substrings"'
        _refuse(wrong, path, what, "not a word or phrase", advice)


def _without_words(lines: list[str]) -> list[int]:
    """Return the entries of which a part between spaces begins with a character that is not part of a word."""
    codes = np.frombuffer("\n".join(["", *lines]).encode("utf-32-le"), "<u4")
    begins = np.flatnonzero((codes == _SPACE) | (codes == _NEWLINE)) + 1
    entries = np.cumsum(codes == _NEWLINE)[begins - 1] - 1
    return np.unique(entries[list_table()[codes[begins]] & (WORD | ALONE) == 0]).tolist() if lines else []


def _refuse(lines: Sequence[int], path: str, what: str, problem: str, advice: str) -> None:
    if lines:
        more = f" and {len(lines) - 1:,} others" if len(lines) > 1 else ""
        raise UnreadableError(f"{what}: {path}, line {lines[0]}{more}: {problem}; {advice}")


def _refuse_duplicates(entries: list[str], places: list[tuple[str, list[int]]], what: str) -> None:
    if len(set(entries)) == len(entries):
        return
    lines = [f"{name}, line {number}" for name, numbers in places for number in numbers]
    first: dict[str, str] = {}
    again = [(first[entry], line) for entry, line in zip(entries, lines, strict=True)
             if first.setdefault(entry, line) is not line]  # fmt: skip
    more = f" ({len(again):,} duplicates in all)" if len(again) > 1 else ""
    raise UnreadableError(f"{what}: {again[0][1]} has the same entry as {again[0][0]}{more}; remove it")
