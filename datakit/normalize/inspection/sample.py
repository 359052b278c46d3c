"""Reads the first records of a few files of a group, as a run would read them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

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
CHECKED_BYTES = 16 << 20  # a compressed file of at most this size is decompressed to its end, in about 0.2 s
SHOWN_PROBLEMS = 3
TOLERATED = 1 << 30  # limit on quarantined records: more than a chunk can hold, so the limit is never reached


@dataclass(frozen=True)
class Sample:
    """The first chunks of a few files. unusable: the number of records in them that cannot be used. problems: messages
    about errors and unusable records. mixed: a column whose types in one file cannot be joined, so that this file could
    not be read; None if there is none.
    """

    chunks: tuple[Chunk, ...]
    unusable: int
    problems: tuple[str, ...]
    mixed: str | None


def sample_files(place: Place, group: FileGroup, text: str) -> Sample:
    """Read the first chunk of up to three files of a group. text: the column that is taken for the text."""
    chunks: list[Chunk] = []
    problems: list[str] = []
    unusable, mixed = 0, None
    for number in sorted({0, len(group.files) // 2, len(group.files) - 1})[:SAMPLED_FILES]:
        counts = RecordCounts(Tolerance(TOLERATED))
        context = ReadContext(Inputs(place.base, query=place.query), Config(text=text), counts)
        try:
            chunks += itertools.islice(read_range(context, FileRange(group.files[number].path, group.format, 0)), 1)
        except InputError as error:
            problems.append(str(error))
            mixed = mixed or (error.mixed if isinstance(error, ColumnError) else None)
        if not counts.quarantined and (damage := _damage(place, group.files[number])):
            problems.append(damage)
            unusable += 1
        unusable += counts.counters[QUARANTINED]
        problems += [
            f"{one_line(record.file)}:{record.position}: {record.reason}"
            for record in counts.quarantined[:SHOWN_PROBLEMS]
        ]
    return Sample(tuple(chunks), unusable, tuple(problems), mixed)


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
