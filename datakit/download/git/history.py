"""Writes the history of a repository to one Parquet file: each commit is one document, its message and its diff.

The columns are `id` (the commit), `text`, `size` (of the text, in bytes), `author_date`, `parents`, and `files` (the
number of files in the diff). Parents come before their children. A merge has its message only, as in `git log -p`, and
so has the diff no files whose names start with a dot or that the patterns of the source do not select. Left out and
listed are commits that change such files only, and those with more than 64 MiB.

`git` lists the commits, and makes the diffs in one process: without the user's settings, attributes, external programs
and text conversion. Its lists are not trusted: each commit is verified by its id and must come after its parents, so
none is missing; each must have its diff, with as many parts as another process lists changed files. Whether a diff is
right cannot be verified.

Memory: one row group, one diff, and about 200 bytes per commit. Cost: about 2 ms per commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa

from datakit.download.git.commits import Commit, parse_commit
from datakit.download.git.objects import Objects, nul_separated
from datakit.download.git.snapshot import LEFT_OUT, Batch, Patterns, Snapshot, valid_path
from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.parquet import ShardWriter

SCHEMA = pa.schema(
    [("id", pa.string()), ("text", pa.large_string()), ("size", pa.int64()), ("author_date", pa.timestamp("ms", "UTC")),
     ("parents", pa.list_(pa.field("element", pa.string()))), ("files", pa.int64())]
)  # fmt: skip
LARGEST_TEXT = 64 << 20
LINE_BYTES = 1 << 20  # a longer line is read in pieces
DIFF_TREE = ("diff-tree", "--stdin", "--root", "-r", "--always", "--no-renames")
PATCH = ("--patch", "--unified=3", "--full-index", "--diff-algorithm=myers", "--no-ext-diff", "--no-textconv",
         "--no-color", "--submodule=short", "--src-prefix=a/", "--dst-prefix=b/")  # fmt: skip
Paths = list[tuple[str, int]]


@dataclass(frozen=True)
class Change:
    """A commit and what it changes. paths: the changed files, with the number of their parts of the diff. parts: all
    parts of the diff, in order, cut off after LARGEST_TEXT. size: that of the whole diff, in bytes.
    """

    commit: Commit
    paths: Paths
    parts: list[bytes]
    size: int

    def text(self, patterns: Patterns) -> tuple[bytes, int]:
        """Return the text of the document, and how many files its diff has."""
        found, files, rest = [self.commit.message.rstrip() + b"\n"], 0, iter(self.parts)
        for path, count in self.paths:
            own = [next(rest) for _ in range(count)]
            if patterns.select(path) and not urls.is_hidden(path):
                found += [b"\n", *own] if not files else own
                files += 1
        return b"".join(found), files


def write_history(
    folder: Path, commits: Path, patterns: Patterns, urls_of: tuple[str, str], report: Callable[[int, int], None]
) -> Snapshot:
    """Write the commits of a bare repository. commits: a file with their ids, one per line, parents before children.
    urls_of: where to write the texts and the list of the commits left out. report: called with the number of commits
    and of bytes so far. Raises CorruptError.
    """
    reasons, done, size, ids = Counter[str](), 0, 0, commits.read_text("ascii").split()
    with (
        Objects(folder) as objects,
        ShardWriter(urls_of[0], SCHEMA) as texts,
        ShardWriter(urls_of[1], LEFT_OUT, ["reason"]) as listed,
    ):
        kept, dropped = Batch(texts), Batch(listed)
        for change in _changes(objects, ids, commits):
            commit, (text, files) = change.commit, change.text(patterns)
            whole = len(commit.message) + change.size
            reason = "no_selected_file" if change.paths and not files else "too_large" if whole > LARGEST_TEXT else ""
            if reason:
                reasons[reason] += 1
                dropped.add({"path": commit.identity, "size": whole, "reason": reason}, len(commit.identity))
            else:
                row = {"id": commit.identity, "text": text, "size": len(text), "author_date": commit.author_ms,
                       "parents": commit.parents, "files": files}  # fmt: skip
                kept.add(row, len(text))
                size += len(text)
            done += 1
            report(done, size)
        kept.flush()
        dropped.flush()
    return Snapshot(texts.info, listed.info, reasons)


def _changes(objects: Objects, ids: Sequence[str], commits: Path) -> Iterator[Change]:
    """Yield the commits `ids`, which are also in the file `commits`. Raises CorruptError."""
    seen = set[str]()
    with (
        open(commits, "rb") as first,
        open(commits, "rb") as second,
        objects.reader(*DIFF_TREE, "--raw", "-z", stdin=first) as names,
        objects.reader(*DIFF_TREE, *PATCH, stdin=second) as diffs,
    ):
        for identity, paths, (parts, size) in zip(ids, _paths(names, ids), _parts(diffs, ids), strict=True):
            commit = parse_commit(identity, objects.commit(identity))
            if missing := [parent for parent in commit.parents if parent not in seen]:
                raise CorruptError(
                    f"git lists commit {identity} without its parent {missing[0]}; the repository may have only a part "
                    "of its history (a shallow clone)"
                )
            seen.add(identity)
            if len(parts) != sum(count for _, count in paths):
                raise CorruptError(f"git made a diff of commit {identity} with other files than it lists; run again")
            yield Change(commit, paths, parts, size)


def _paths(stream: IO[bytes], ids: Sequence[str]) -> Iterator[Paths]:
    """Yield the changed files of each commit, with the number of their parts of the diff: a file that becomes a link is
    first removed, then added.
    """
    tokens = nul_separated(stream)
    token = next(tokens, b"")
    for identity in ids:
        _require(token, identity)
        paths: Paths = []
        while (token := next(tokens, b"")).startswith(b":"):
            path = next(tokens, b"").decode("utf-8", "surrogateescape")
            paths.append((valid_path(path), 2 if token.endswith(b" T") else 1))
        yield paths


def _parts(stream: IO[bytes], ids: Sequence[str]) -> Iterator[tuple[list[bytes], int]]:
    """Yield the parts of each commit's diff and its size in bytes. Lines that begin after LARGEST_TEXT are left out."""
    line = stream.readline(LINE_BYTES)
    for number, identity in enumerate(ids):
        _require(line.rstrip(b"\n"), identity)
        following = f"{ids[number + 1]}\n".encode() if number + 1 < len(ids) else b""
        parts, size, at_start = list[bytearray](), 0, True
        while (line := stream.readline(LINE_BYTES)) and not (at_start and line == following):
            if at_start and line.startswith(b"diff --git "):
                parts.append(bytearray())
            if not parts:
                raise CorruptError(f"git made a diff of commit {identity} that cannot be understood; run again")
            if size <= LARGEST_TEXT:
                parts[-1] += line
            size += len(line)
            at_start = line.endswith(b"\n")
        yield [bytes(part) for part in parts], size


def _require(found: bytes, identity: str) -> None:
    if found != identity.encode():
        raise CorruptError(f"git did not say what commit {identity} changes; run again")
