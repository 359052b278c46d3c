"""Writes the files of a repository at a commit to one Parquet file, and lists the files that it leaves out.

The columns are `id` (the path), `text`, `size` (in bytes), `commit` and `language` (by extension). Left out are links,
submodules, names that start with a dot, files that the patterns of the source do not select, binary files (those with a
NUL in their first 8,000 bytes, as for `git diff`), pointers to large files (LFS), and files over 256 MiB. All of them,
except those that the patterns leave out, are listed with the reason.

Memory: one row group, and one file. The rows are in the order of the paths, so equal commits give equal bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from datakit.download.git.languages import language_of
from datakit.download.git.objects import LINK, SUBMODULE, Entry, Objects
from datakit.storage import globs, urls
from datakit.storage.parquet import ROW_GROUP_BYTES, ShardInfo, ShardWriter

SCHEMA = pa.schema(
    [("id", pa.string()), ("text", pa.large_string()), ("size", pa.int64()), ("commit", pa.string()),
     ("language", pa.string())]
)  # fmt: skip
LEFT_OUT = pa.schema([("path", pa.string()), ("size", pa.int64()), ("reason", pa.string())])
LARGEST_FILE = 256 << 20
HEAD_BYTES = 8000  # in which `git` looks for a NUL
LARGE_FILE_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BATCH_ROWS = 4096


@dataclass(frozen=True)
class Patterns:
    """The patterns of a source. An empty `include` selects all files."""

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    _include: re.Pattern[str] = field(init=False)
    _exclude: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_include", globs.matcher(self.include))
        object.__setattr__(self, "_exclude", globs.matcher(self.exclude))

    def select(self, path: str) -> bool:
        """Return True if the patterns select this path."""
        wanted = not self.include or self._include.fullmatch(path) is not None
        return wanted and not (self.exclude and self._exclude.fullmatch(path))


@dataclass
class Snapshot:
    """The result: the file of texts, the list of files left out, and how many of them there are, by reason."""

    texts: ShardInfo
    left_out: ShardInfo
    reasons: Counter[str]


def write_snapshot(
    folder: Path, commit: str, patterns: Patterns, urls_of: tuple[str, str], report: Callable[[int, int], None]
) -> Snapshot:
    """Write the files of a commit. folder: the bare repository. urls_of: where to write the texts and the list. report:
    called with the number of files and of bytes so far. Raises CorruptError.
    """
    reasons, done, size = Counter[str](), 0, 0
    with (
        Objects(folder) as objects,
        ShardWriter(urls_of[0], SCHEMA, ["commit", "language"]) as texts,
        ShardWriter(urls_of[1], LEFT_OUT, ["reason"]) as listed,
    ):
        kept, dropped = Batch(texts), Batch(listed)
        for entry in objects.entries(commit):
            path = valid_path(entry.path)
            if not patterns.select(path):
                continue
            reason, data = _content(objects, entry, path)
            if reason:
                reasons[reason] += 1
                dropped.add({"path": path, "size": entry.size, "reason": reason}, len(path))
            else:
                row = {"id": path, "text": data, "size": entry.size, "commit": commit, "language": language_of(path)}
                kept.add(row, len(data))
                size += len(data)
            done += 1
            report(done, size)
        kept.flush()
        dropped.flush()
    return Snapshot(texts.info, listed.info, reasons)


def _content(objects: Objects, entry: Entry, path: str) -> tuple[str, bytes]:
    """Return why a file is left out, or "" and its content."""
    if entry.mode in (LINK, SUBMODULE):
        return "link" if entry.mode == LINK else "submodule", b""
    if urls.is_hidden(path):
        return "hidden", b""
    if (entry.size or 0) > LARGEST_FILE:
        return "too_large", b""
    data = objects.content(entry)
    if b"\0" in data[:HEAD_BYTES]:
        return "binary", b""
    return (
        ("large_file_pointer", b"") if data.startswith(LARGE_FILE_POINTER) else ("", data.removeprefix(BYTE_ORDER_MARK))
    )


def valid_path(path: str) -> str:
    """Return a path with replacement characters for what is not valid UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class Batch:
    """Rows that are not yet written. Where rows are cut does not change the file."""

    def __init__(self, writer: ShardWriter) -> None:
        self._writer, self._rows, self._bytes = writer, list[dict[str, Any]](), 0

    def add(self, row: dict[str, Any], size: int) -> None:
        """Add a row of `size` bytes, and write the rows if there are enough."""
        self._rows.append(row)
        self._bytes += size
        if self._bytes >= ROW_GROUP_BYTES or len(self._rows) >= BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the rows."""
        schema = self._writer.schema
        columns = [
            # contents need not be valid UTF-8; normalize repairs them
            pa.array([row["text"] for row in self._rows], pa.large_binary()).view(pa.large_string())
            if field.name == "text"
            else pa.array([row[field.name] for row in self._rows], field.type)
            for field in schema
        ]
        if self._rows:
            self._writer.write(pa.table(columns, schema=schema))
        self._rows, self._bytes = [], 0
