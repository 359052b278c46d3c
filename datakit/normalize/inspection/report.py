"""Inspects a raw source before a run: groups its files, finds their columns and sizes, and guesses the text and id
columns. Samples at most three files per group: reads only the first chunk of each and, to find damage, decompresses
small files to the end. Apart from the listing, inspecting a source of any size therefore takes only a moment. Reports
ids, names, types and lengths, but never any text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import types

from datakit.errors import NoInputError
from datakit.normalize import formats
from datakit.normalize.columns.schema_union import fit, fit_column, is_bytes, unite
from datakit.normalize.config import Config
from datakit.normalize.inspection.file_groups import FileGroup, group_files
from datakit.normalize.inspection.sample import SHOWN_PROBLEMS, Sample, sample_files
from datakit.normalize.readers.base import Chunk
from datakit.normalize.route import hash_texts
from datakit.normalize.text_rules import apply_rules
from datakit.signed_urls import without_query
from datakit.storage import globs, urls
from datakit.storage.globs import Place
from datakit.storage.ids import ids_to_arrow
from datakit.storage.row_size import row_sizes
from datakit.text.compilation import announced
from datakit.text.string_buffers import string_buffers

SHOWN_IDS = 3
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
    sample, columns, text = _sample_and_guess(place, group)
    chunks = sample.chunks
    lengths, ids = _texts(chunks, text) if text else (np.zeros(0), ())
    return GroupReport(
        name=group.name, url=without_query(group.url), include=group.include, format=group.format,
        files=len(group.files), bytes=sum(info.size for info in group.files), extensions=group.extensions,
        records=sum(chunk.table.num_rows for chunk in chunks), unusable=sample.unusable, columns=columns, text=text,
        id=guess_id(columns, lambda name: _is_unique(chunks, name)),
        mean_text_bytes=round(float(lengths.mean()), 1) if len(lengths) else 0.0, sample_ids=ids,
        problems=sample.problems,
    )  # fmt: skip


def _sample_and_guess(place: Place, group: FileGroup) -> tuple[Sample, tuple[ColumnReport, ...], str | None]:
    """Sample the files of a group as a run would read them. Return the sample, its columns, and the text column.

    Which records of a JSON file can be used depends on the text column: a record in which it holds no string cannot.
    Therefore the files are sampled again if the text column is not the assumed one.
    """
    assumed = Config.text
    sample = sample_files(place, group, assumed)
    columns = _columns(sample)
    text = guess_text(columns)
    other = sample.mixed or text
    if group.format != formats.JSON or other is None or other == assumed:
        return sample, columns, text
    again = sample_files(place, group, other)
    columns_again = _columns(again)
    if again.mixed is None and guess_text(columns_again) == other:
        return again, columns_again, other
    return sample, columns, text


def _columns(sample: Sample) -> tuple[ColumnReport, ...]:
    schema = unite((chunk.file, chunk.table.schema) for chunk in sample.chunks)
    return tuple(_column(sample.chunks, field) for field in schema)


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
