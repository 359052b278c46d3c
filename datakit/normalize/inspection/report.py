"""Inspects a raw source before a run: groups its files, finds their columns, sizes and license, guesses the text and id
columns, and lists what is suspicious. Samples at most three files per group, of which it reads only the first chunk; to
find damage, it reads small groups and small compressed files to the end. Apart from the listing, inspecting a source of
any size therefore takes only a few seconds. Reports ids, names, types and lengths, but never any text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyarrow import types

from datakit.errors import NoInputError
from datakit.normalize import formats
from datakit.normalize.columns.schema_union import fit, is_bytes
from datakit.normalize.config import Config
from datakit.normalize.inspection.column_reports import ColumnReport
from datakit.normalize.inspection.file_groups import FileGroup, group_files
from datakit.normalize.inspection.guesses import can_be_id, guess_id, has_unique_values, text_evidence
from datakit.normalize.inspection.licenses import LicenseEvidence, find_licenses
from datakit.normalize.inspection.sample import SHOWN_PROBLEMS
from datakit.normalize.inspection.suspicions import suspicions
from datakit.normalize.inspection.trials import accepted
from datakit.normalize.readers.base import Chunk
from datakit.normalize.readers.dolma.attribute_files import joined_attributes
from datakit.normalize.route import hash_texts
from datakit.normalize.text_rules import apply_rules
from datakit.printable import one_line
from datakit.signed_urls import without_query
from datakit.storage import globs, urls
from datakit.storage.globs import Place
from datakit.storage.ids import ids_to_arrow
from datakit.storage.io_errors import read_errors
from datakit.text.compilation import announced
from datakit.text.string_buffers import string_buffers

SHOWN_IDS = 3


@dataclass(frozen=True)
class GroupReport:
    """A group of files and the source that they would become in a recipe (name, url, include, exclude, text, id).
    exclude: patterns of files that a run would refuse, with the reasons. dropped: columns that a run would refuse, with
    the reasons. The fields about columns and texts describe a sample. records, unusable: the numbers of records in the
    files read that can and cannot be used. texts: False if none of these records has a text. suspicions: what a run
    accepts although it may be a mistake.
    """

    name: str
    url: str
    include: tuple[str, ...]
    exclude: dict[str, str]
    format: str
    files: int
    bytes: int
    extensions: tuple[str, ...]
    records: int
    unusable: int
    texts: bool
    columns: tuple[ColumnReport, ...]
    dropped: dict[str, str]
    text: str | None
    text_evidence: str
    id: str | None
    mean_text_bytes: float
    sample_ids: tuple[str, ...]
    problems: tuple[str, ...]
    suspicions: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """True if the files can become a source as they are."""
        return self.text is not None and self.texts and self.records >= max(1, self.unusable)

    @property
    def reason(self) -> str:
        """The reason why the files cannot become a source as they are."""
        if self.columns and self.text is None:
            return "no column of strings was found; docs/tokenization.md describes sources of chats and of token lists"
        if self.problems:
            return self.problems[0]
        return "the texts of all sampled records are blank" if self.records else "the sampled files have no records"


@dataclass(frozen=True)
class RawReport:
    """The report on a raw source. problems: messages about files and records that could not be read. licenses: what
    files beside the data state about the license.
    """

    url: str
    files: int
    bytes: int
    groups: tuple[GroupReport, ...]
    problems: tuple[str, ...]
    licenses: tuple[LicenseEvidence, ...]


def inspect_source(
    url: str,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    compiling: Callable[[], None] = lambda: None,
) -> RawReport:
    """Inspect a file, a directory, or the matches of a glob. Calls `compiling` if kernels must be compiled first.
    Raises NoInputError if there is no file.
    """
    with read_errors(url):
        place = globs.locate(url)
        every = globs.files_at(place)
    files, skipped = globs.regular(globs.select(every, place, include, exclude), skip_links=True)
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
    links = globs.refused_links(every)
    attributes = joined_attributes(info.path for info in files)
    reports = tuple(_without_attributes(_inspect_group(place, group, links), group, attributes) for group in groups)
    problems += [problem for report in reports for problem in report.problems]
    size = sum(info.size for info in files)
    return RawReport(without_query(url), len(files), size, reports, tuple(problems), find_licenses(place, every))


def _inspect_group(place: Place, group: FileGroup, links: Mapping[str, str]) -> GroupReport:
    """Inspect a group. links: what each link is that a run refuses if it is below the group's URL."""
    trial, sample, columns, text = accepted(place, group)
    below = f"{group.folder}/" if group.folder else ""
    refused = {path: f"{one_line(path)} is {what}" for path, what in links.items() if path.startswith(below)}
    chunks, kept = sample.chunks, trial.group.files or group.files
    lengths, ids = _texts(chunks, text) if text else (np.zeros(0), ())
    return GroupReport(
        name=group.name, url=without_query(group.url), include=group.include,
        exclude={group.pattern_of(path): reason for path, reason in {**trial.refused, **refused}.items()},
        format=group.format, files=len(kept), bytes=sum(info.size for info in kept),
        extensions=group.extensions, records=sample.records, unusable=sample.unusable, texts=sample.texts,
        columns=columns, dropped=dict(trial.dropped), text=text,
        text_evidence=text_evidence(columns, text) if text and group.format != formats.TEXT else "",
        id=_id(columns, chunks),
        mean_text_bytes=round(float(lengths.mean()), 1) if len(lengths) else 0.0, sample_ids=ids,
        problems=tuple(dict.fromkeys([*trial.problems, *sample.problems])),
        suspicions=tuple(suspicions(group, chunks, columns, text)),
    )  # fmt: skip


def _without_attributes(report: GroupReport, group: FileGroup, attributes: Collection[str]) -> GroupReport:
    """Return the report, unusable if all files of the group hold attributes of documents in Dolma's form."""
    if not all(info.path in attributes for info in group.files):
        return report
    reason = (
        'attributes of the files below documents/, in Dolma\'s form; one source with `format = "dolma"` and the folder '
        "above documents/ as `url` joins them"
    )
    return replace(report, text=None, columns=(), problems=(reason,), suspicions=())


def _id(columns: Sequence[ColumnReport], chunks: Sequence[Chunk]) -> str | None:
    """Return the column for the ids, "" if a run must not use the column `id`, or None if there is none."""
    found = guess_id(columns, lambda name: has_unique_values(chunks, name))
    unfit = any(column.name == "id" and not can_be_id(column) for column in columns)
    return "" if found is None and unfit else found


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
