"""Inspects a raw source before a run: groups its files, finds their columns and sizes, and guesses the text and id
columns. Samples at most three files per group: reads only the first chunk of each and, to find damage, decompresses
small files to the end. Apart from the listing, inspecting a source of any size therefore takes only a moment. Reports
ids, names, types and lengths, but never any text.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import types

from datakit.engine.task import Tolerance
from datakit.errors import InputError, NoInputError, UnreadableError
from datakit.normalize import formats
from datakit.normalize.columns.schema_union import fit, fit_column, is_bytes, unite
from datakit.normalize.config import Config
from datakit.normalize.inspection.file_groups import FileGroup, group_files
from datakit.normalize.readers.base import Chunk, ReadContext
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.slices import FileRange, read_range
from datakit.normalize.readers.streams import DamagedError, DamagedStreamError, decompressed
from datakit.normalize.record_counts import QUARANTINED, RecordCounts
from datakit.normalize.route import hash_texts
from datakit.normalize.text_rules import apply_rules
from datakit.printable import one_line
from datakit.signed_urls import without_query
from datakit.storage import globs, urls
from datakit.storage.globs import Place
from datakit.storage.ids import ids_to_arrow
from datakit.storage.row_size import row_sizes
from datakit.storage.urls import FileInfo
from datakit.text.compilation import announced
from datakit.text.string_buffers import string_buffers

SAMPLED_FILES = 3  # per group: the first, the middle and the last file
CHECKED_BYTES = 16 << 20  # a compressed file of at most this size is decompressed to its end, in about 0.2 s
SHOWN_IDS = 3
SHOWN_PROBLEMS = 3
TOLERATED = 1 << 30  # limit on quarantined records: more than a chunk can hold, so the limit is never reached
ID_ENDING = re.compile(r"(?:_id|_ID|[a-z]I[dD])$")  # matches the ends of names such as review_id and reviewId
TEXT_NAMES = ("text", "content", "raw_content", "body", "markdown", "document", "article", "code", "story")
ID_NAMES = ("id", "doc_id", "document_id", "docid", "uuid", "guid", "key", "hash", "sha", "url", "path")


@dataclass(frozen=True)
class ColumnReport:
    """A column: its type, the share of sampled records with a value in it, and the values' mean size in bytes."""

    name: str
    type: str
    filled: float
    mean_bytes: float


@dataclass(frozen=True)
class GroupReport:
    """A group of files and the source that they would become in a recipe (name, url, include, text, id). The fields
    about columns and texts describe a sample, in which `records` records are usable and `unusable` records are not.
    """

    name: str
    url: str
    include: tuple[str, ...]
    format: str
    files: int
    bytes: int
    extensions: tuple[str, ...]
    records: int
    unusable: int
    columns: tuple[ColumnReport, ...]
    text: str | None
    id: str | None
    mean_text_bytes: float
    sample_ids: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """True if the files can become a source as they are."""
        return self.text is not None and self.records >= max(1, self.unusable)

    @property
    def reason(self) -> str:
        """The reason why the files cannot become a source as they are."""
        if self.records and self.text is None:
            return "no column of strings was found; docs/tokenization.md describes sources of chats and of token lists"
        return self.problems[0] if self.problems else "the sampled files have no records"


@dataclass(frozen=True)
class RawReport:
    """The report on a raw source. problems: messages about files and records that could not be read."""

    url: str
    files: int
    bytes: int
    groups: tuple[GroupReport, ...]
    problems: tuple[str, ...]


def inspect_source(
    url: str,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    compiling: Callable[[], None] = lambda: None,
) -> RawReport:
    """Inspect a file, a directory, or the matches of a glob. Calls `compiling` if kernels must be compiled first.
    Raises NoInputError if there is no file.
    """
    place = globs.locate(url)
    files, skipped = globs.regular(globs.select(globs.files_at(place), place, include, exclude), skip_links=True)
    if not files:
        if urls.is_local(place.base) and os.path.exists(place.base) and not os.path.isdir(place.base):
            urls.size(place.base)  # raises UnreadableError for a pipe, a socket or a device
        raise NoInputError(f"{url}: no {'regular' if skipped else 'such'} file; check the path")
    groups, problems = group_files(url, files)
    unknown = len(problems)
    problems = problems[:SHOWN_PROBLEMS]
    if unknown > SHOWN_PROBLEMS:
        problems.append(f"{unknown - SHOWN_PROBLEMS} more files are in no source of the draft")
    problems += [f"left out: {skipped}"] if skipped else []
    from datakit.normalize import warm_kernels  # imports numba, which is not needed to find the files

    with announced(compiling):
        warm_kernels.warm()
    reports = tuple(_inspect_group(place, group) for group in groups)
    problems += [problem for report in reports for problem in report.problems]
    return RawReport(without_query(url), len(files), sum(info.size for info in files), reports, tuple(problems))


def _inspect_group(place: Place, group: FileGroup) -> GroupReport:
    problems: list[str] = []
    chunks, unusable = _sampled_chunks(place, group, problems)
    schema = unite((chunk.file, chunk.table.schema) for chunk in chunks)
    columns = tuple(_column(chunks, field) for field in schema)
    text = guess_text(columns)
    lengths, ids = _texts(chunks, text) if text else (np.zeros(0), ())
    return GroupReport(
        name=group.name, url=without_query(group.url), include=group.include, format=group.format,
        files=len(group.files), bytes=sum(info.size for info in group.files), extensions=group.extensions,
        records=sum(chunk.table.num_rows for chunk in chunks), unusable=unusable, columns=columns, text=text,
        id=guess_id(columns, lambda name: _is_unique(chunks, name)),
        mean_text_bytes=round(float(lengths.mean()), 1) if len(lengths) else 0.0, sample_ids=ids,
        problems=tuple(problems),
    )  # fmt: skip


def _sampled_chunks(place: Place, group: FileGroup, problems: list[str]) -> tuple[list[Chunk], int]:
    """Read the first chunk of up to three files, and append messages about errors and unusable records to `problems`.
    Return the chunks and the number of unusable records.
    """
    chunks: list[Chunk] = []
    unusable = 0
    for number in sorted({0, len(group.files) // 2, len(group.files) - 1})[:SAMPLED_FILES]:
        counts = RecordCounts(Tolerance(TOLERATED))
        context = ReadContext(Inputs(place.base, query=place.query), Config(), counts)
        try:
            chunks += itertools.islice(read_range(context, FileRange(group.files[number].path, group.format, 0)), 1)
        except InputError as error:
            problems.append(str(error))
        if not counts.quarantined and (damage := _damage(place, group.files[number])):
            problems.append(damage)
            unusable += 1
        unusable += counts.counters[QUARANTINED]
        problems += [
            f"{one_line(record.file)}:{record.position}: {record.reason}"
            for record in counts.quarantined[:SHOWN_PROBLEMS]
        ]
    return chunks, unusable


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


def _column(chunks: Sequence[Chunk], field: pa.Field) -> ColumnReport:
    rows = filled = size = 0
    for chunk in chunks:
        rows += chunk.table.num_rows
        if field.name in chunk.table.column_names:
            column = chunk.table.select([field.name])
            filled += column.num_rows - column.column(0).null_count
            size += int(row_sizes(column).sum())
    return ColumnReport(field.name, str(field.type), round(filled / max(1, rows), 3), round(size / max(1, filled), 1))


def guess_text(columns: Sequence[ColumnReport]) -> str | None:
    """Return the column that probably holds the text, or None if no column has strings or bytes.

    Of the columns that TEXT_NAMES lists and that have at least 30 % as many bytes as the largest column, the one listed
    first is returned. If there is no such column, the largest column is returned.
    """
    strings = [column for column in columns if column.type in ("string", "large_string", "binary", "large_binary")]
    sizes = {column.name: column.mean_bytes * column.filled for column in strings}
    most = max(sizes.values(), default=0.0)
    usual = [name for known in TEXT_NAMES for name in sizes if name.lower() == known and sizes[name] >= 0.3 * most]
    return next(iter(usual), None) or max(sizes, key=sizes.__getitem__, default=None)


def guess_id(columns: Sequence[ColumnReport], is_unique: Callable[[str], bool] = lambda name: False) -> str | None:
    """Return the column that probably holds the ids, or None. Only columns with a scalar in over 90 % of the records
    are considered. The one that ID_NAMES lists first is returned or, if it lists none of them, the first one whose name
    ends in "id" as a word and whose values are unique.
    """
    plain = {column.name.lower(): column.name for column in columns if column.filled > 0.9 and "<" not in column.type}
    known = next((plain[name] for name in ID_NAMES if name in plain), None)
    return known or next((name for name in plain.values() if ID_ENDING.search(name) and is_unique(name)), None)


def _is_unique(chunks: Sequence[Chunk], name: str) -> bool:
    """Return True if a column holds neither bytes nor floats and has several sampled values, all of them different."""
    columns = [chunk.table.column(name) for chunk in chunks if name in chunk.table.column_names]
    if any(is_bytes(column.type) or types.is_floating(column.type) for column in columns):
        return False
    values = pa.chunked_array(
        [part for column in columns for part in fit_column(column, pa.string()).chunks], pa.string()
    )
    return len(values) > 1 and len(values.unique()) == len(values)


def _texts(chunks: Sequence[Chunk], text: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the lengths in bytes of the sampled texts, and the ids that the first few of them will get."""
    lengths, ids = [], []
    for chunk in chunks:
        if text in chunk.table.column_names:
            column = chunk.table.column(text).combine_chunks()
            if types.is_null(column.type) or types.is_nested(column.type):
                continue
            ruled = apply_rules(
                fit(column, pa.large_binary() if is_bytes(column.type) else pa.large_string()), Config.whitespace_run
            )
            documents = ruled.texts.filter(pa.array(ruled.kept))
            lengths.append(np.diff(string_buffers(documents)[1]))
            ids += ids_to_arrow(*hash_texts(documents[:SHOWN_IDS])).to_pylist()
    return np.concatenate(lengths) if lengths else np.zeros(0), tuple(ids[:SHOWN_IDS])
