"""Reads the first records of a few files of a group, as a run would read them. The files of a small group are read to
their ends, so that the draft leaves out exactly those that a run would refuse. Memory holds the records of at most
three chunks of each format, whatever the number of files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow.compute as pc
from pyarrow import types

from datakit.engine.task import Tolerance
from datakit.errors import ColumnError, InputError, UnreadableError
from datakit.normalize import formats
from datakit.normalize.config import Config
from datakit.normalize.inspection.file_groups import FileGroup
from datakit.normalize.readers.base import Chunk, ReadContext
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.slices import FileRange, read_range
from datakit.normalize.readers.streams import DamagedError, DamagedStreamError, decompressed
from datakit.normalize.record_counts import QUARANTINED, RecordCounts
from datakit.printable import one_line
from datakit.storage.globs import Place
from datakit.storage.urls import FileInfo

SAMPLED_FILES = 3  # per group: the first, the middle and the last file
CHECKED_FILES = 300  # a group with at most so many files ...
CHECKED_GROUP_BYTES = 64 << 20  # ... of at most this size in all is read to the end, in a second or two
CHECKED_BYTES = 16 << 20  # a compressed file of at most this size is decompressed to its end, in about 0.2 s
DECODED_BYTES = 64 << 20  # of one file, at most so much is decoded, in case that it is a decompression bomb
SHOWN_PROBLEMS = 3
TOLERATED = 1 << 30  # limit on quarantined records: more than a chunk can hold, so the limit is never reached


@dataclass(frozen=True)
class Sample:
    """The first chunks of a few files. The chunks of further files have no rows, only columns. records, unusable: the
    numbers of records in all files read that can and that cannot be used. texts: True if any of these records has a
    text. problems: messages about errors and unusable records. refused: the files that a run would refuse, with the
    reasons. mixed: a column whose types in one file cannot be joined, so that this file could not be read; None if
    there is none. whole: True if all files were read to their ends.
    """

    chunks: tuple[Chunk, ...]
    records: int
    unusable: int
    texts: bool
    problems: tuple[str, ...]
    refused: dict[str, str]
    mixed: str | None
    whole: bool


@dataclass
class _Totals:
    """The findings in the files read so far; the fields are those of `Sample`."""

    chunks: list[Chunk] = field(default_factory=list)
    records: int = 0
    unusable: int = 0
    texts: bool = False
    problems: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    mixed: str | None = None


def sample_files(place: Place, group: FileGroup, config: Config) -> Sample:
    """Read up to three files of a group, or all files of a small one. config: the text column, and the columns to leave
    out.
    """
    files = group.files
    whole = len(files) <= CHECKED_FILES and sum(info.size for info in files) <= CHECKED_GROUP_BYTES
    sampled = {0, len(files) // 2, len(files) - 1}
    totals, reading = _Totals(), _Reading(place, group.format, config, whole)
    for number in range(len(files)) if whole else sorted(sampled)[:SAMPLED_FILES]:
        _add(totals, reading, files[number], number in sampled)
    return Sample(
        tuple(totals.chunks), totals.records, totals.unusable, totals.texts, tuple(totals.problems), totals.refused,
        totals.mixed, whole and all(info.size <= CHECKED_BYTES for info in files),
    )  # fmt: skip


@dataclass(frozen=True)
class _Reading:
    """The way to read the files of a group. whole: to their ends, unless they are large."""

    place: Place
    format: str
    config: Config
    whole: bool

    def to_the_end(self, file: FileInfo) -> bool:
        """Return True if the file is read to its end."""
        return self.whole and file.size <= CHECKED_BYTES

    def chunks(self, file: FileInfo, counts: RecordCounts) -> Iterator[Chunk]:
        """Yield the first chunk of a file, or all of them."""
        context = ReadContext(Inputs(self.place.base, query=self.place.query), self.config, counts)
        decoded = 0
        for chunk in read_range(context, FileRange(file.path, self.format, 0)):
            yield chunk
            decoded += chunk.bytes_read
            if not self.to_the_end(file) or decoded > DECODED_BYTES:
                return


def _add(totals: _Totals, reading: _Reading, file: FileInfo, kept: bool) -> None:
    """Read a file. kept: whether its first chunk belongs to the sample."""
    counts = RecordCounts(Tolerance(TOLERATED))
    try:
        for number, chunk in enumerate(reading.chunks(file, counts)):
            totals.records += chunk.table.num_rows
            totals.texts = totals.texts or _has_text(chunk, reading.config.text_name)
            totals.chunks.append(chunk if kept and number == 0 else _without_rows(chunk))
    except InputError as error:
        totals.problems.append(str(error))
        mixed = error.mixed if isinstance(error, ColumnError) else None
        totals.mixed = totals.mixed or mixed
        if mixed is None:
            totals.refused[file.path] = str(error)
    if not reading.to_the_end(file) and not counts.quarantined and (damage := _damage(reading.place, file)):
        totals.problems.append(damage)
        totals.unusable += 1
    totals.unusable += counts.counters[QUARANTINED]
    totals.problems += [
        f"{one_line(record.file)}:{record.position}: {record.reason}" for record in counts.quarantined[:SHOWN_PROBLEMS]
    ]


def _without_rows(chunk: Chunk) -> Chunk:
    return replace(chunk, table=chunk.table.schema.empty_table(), positions=np.zeros(0, np.int64), files=())


def _has_text(chunk: Chunk, text: str) -> bool:
    """Return True if a record of the chunk has a text that is not blank."""
    if text not in chunk.table.column_names:
        return False
    column = chunk.table.column(text)
    if types.is_nested(column.type) or types.is_null(column.type):
        return False
    if types.is_binary(column.type) or types.is_large_binary(column.type):
        return any(value is not None and value.strip() for part in column.chunks for value in part.to_pylist())
    trimmed = pc.call_function("utf8_trim_whitespace", [column.cast("large_string")])
    return bool(pc.call_function("any", [pc.call_function("not_equal", [trimmed, ""])]).as_py())


def _damage(place: Place, file: FileInfo) -> str:
    """Return a message if a small compressed file is damaged after the records that were sampled, else ""."""
    if formats.compression_of(file.path) is None or file.size > CHECKED_BYTES:
        return ""
    try:
        with Inputs(place.base, query=place.query).open(file.path) as opened:
            for _ in decompressed(opened, file.path):
                pass
    except DamagedError as error:
        return f"{file.path}: {error}"
    except DamagedStreamError as error:
        return str(error)
    except UnreadableError:
        pass  # already reported, when the sample was read
    return ""
