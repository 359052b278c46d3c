"""Finds out which files and columns of a group a run would accept, by sampling the group again and again, each time
without the files and columns that were refused before. Cost: as many samples as there are causes of refusals, which
are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from datakit.errors import RefusedError
from datakit.normalize import formats
from datakit.normalize.columns.schema_union import shown
from datakit.normalize.config import NO_EXTRACTION, Config
from datakit.normalize.inspection import column_reports
from datakit.normalize.inspection.column_reports import ColumnReport, describe_columns
from datakit.normalize.inspection.file_groups import FileGroup
from datakit.normalize.inspection.guesses import guess_text
from datakit.normalize.inspection.sample import Sample, sample_files
from datakit.printable import one_line
from datakit.storage.globs import Place

MOST_TRIALS = 8  # how often a group is sampled at most; what is refused even then remains a problem of the report


@dataclass(frozen=True)
class Trial:
    """A group as far as a run would accept it: without the files in `refused` and the columns in `dropped`."""

    group: FileGroup
    text: str = str(Config.text)
    refused: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def sample(self, place: Place) -> tuple[Sample, tuple[ColumnReport, ...]]:
        """Sample the files, and describe their columns."""
        sample = sample_files(
            place, self.group, Config(text=self.text, drop=tuple(self.dropped), extract=NO_EXTRACTION)
        )
        chunks = column_reports.without(sample.chunks, [*column_reports.conflicts(sample.chunks)])
        try:
            return sample, describe_columns(chunks)
        except RefusedError as error:  # for example, too many columns
            return replace(sample, problems=(*sample.problems, str(error))), ()


def accepted(place: Place, group: FileGroup) -> tuple[Trial, Sample, tuple[ColumnReport, ...], str | None]:
    """Leave out columns and files that a run would refuse, until it would accept the rest. Return the last trial, its
    sample, its columns, and the text column (None if no column holds strings).
    """
    paths = [info.path for info in group.files if not _is_utf8(info.path)]
    unnamed = {path: f"the name of {one_line(path)} is not UTF-8" for path in paths}
    trial = replace(_with_text(place, group.without(unnamed)), refused=unnamed)
    for _ in range(MOST_TRIALS):
        sample, columns = trial.sample(place)
        text = guess_text(columns)
        if text is not None and trial.text not in {column.name for column in columns}:
            trial = replace(trial, text=text)  # the columns were not known before
            sample, columns = trial.sample(place)
        dropped, refused = _refusals(trial, sample)
        if not dropped and not refused:
            break
        problems = (*trial.problems, *sample.problems)
        trial = replace(
            trial, group=trial.group.without(refused), problems=problems,
            refused={**trial.refused, **refused}, dropped={**trial.dropped, **dropped},
        )  # fmt: skip
    else:
        sample, columns = trial.sample(place)
    strings = guess_text(columns) is not None and trial.text in {column.name for column in columns}
    return trial, sample, columns, trial.text if strings else None


def _with_text(place: Place, group: FileGroup) -> Trial:
    """Return the first trial of a group, with the column that is taken for the text.

    Which records of a JSON file can be used depends on the text column: a record in which it holds no string cannot.
    Therefore the files are sampled again if the text column is not the assumed one.
    """
    assumed = Trial(group)
    sample, columns = assumed.sample(place)
    text = guess_text(columns)
    other = sample.mixed or text
    if other is None or other == assumed.text:
        return replace(assumed, text=text or assumed.text)
    if group.format != formats.JSON:
        return replace(assumed, text=other)
    has_assumed = assumed.text in {column.name for column in columns}
    fallback = assumed if has_assumed else replace(assumed, text=text or assumed.text)
    again = replace(assumed, text=other)
    sample, columns = again.sample(place)
    return again if sample.mixed is None and guess_text(columns) == other else fallback


def _refusals(trial: Trial, sample: Sample) -> tuple[dict[str, str], dict[str, str]]:
    """Return (columns to drop, files to leave out), each with the reason."""
    dropped = {} if sample.mixed in (None, trial.text) else {sample.mixed: "its types in one file cannot be joined"}
    for name, reason in column_reports.conflicts(sample.chunks).items():
        if name != trial.text:
            dropped[name] = reason
    refused = dict(sample.refused)
    having = {chunk.file for chunk in sample.chunks if trial.text in chunk.table.column_names}
    for chunk in sample.chunks if having else ():
        if chunk.file not in having and chunk.table.column_names:
            refused[chunk.file] = f"{one_line(chunk.file)} has no column {shown(trial.text)}"
    return dropped, refused


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
