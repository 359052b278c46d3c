"""Defines what every reader receives (`ReadContext`) and yields (`Chunk`), drops columns, and rejects a file with two
columns of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from datakit.engine.task import TaskContext, Tolerance
from datakit.errors import ColumnError
from datakit.normalize.columns.column_choice import ColumnChoice
from datakit.normalize.columns.schema_union import shown
from datakit.normalize.config import Config
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.line_chunks import CHUNK_BYTES
from datakit.normalize.readers.streams import Streams
from datakit.normalize.record_counts import RecordCounts
from datakit.normalize.settings.splits import COLUMN
from datakit.printable import one_line

T = TypeVar("T")


@dataclass(frozen=True)
class ReadContext:
    """A task's view of a source. task: the context that receives heartbeats; the default context discards them.
    streams: the compressed streams read so far, and those that are known to be damaged.
    """

    inputs: Inputs
    config: Config
    counts: RecordCounts
    task: TaskContext = field(default_factory=lambda: TaskContext("", Path()))
    streams: Streams = field(default_factory=Streams)

    @cached_property
    def choice(self) -> ColumnChoice:
        """The columns that readers pass on."""
        return ColumnChoice(self.config)

    def for_trial(self) -> ReadContext:
        """Return a context for trying a single record: it discards counts and heartbeats."""
        return ReadContext(self.inputs, self.config, RecordCounts(Tolerance(1 << 62)))

    def start_batch(self, path: str, positions: np.ndarray, try_record: Callable[[int], object]) -> np.ndarray | None:
        """Call `TaskContext.records`, and quarantine the records that must be left out. Return a mask of the records to
        parse, or None for all of them.
        """
        kept, left_out = self.task.records(path, positions, try_record)
        for record in left_out:
            self.counts.unreadable(record.file, record.position, record.reason)
        return kept


@dataclass(frozen=True)
class Chunk:
    """The records of one chunk of a file, in file order.

    table: [rows], the upstream columns.
    positions: int64 [rows], each record's byte offset in the uncompressed file, or its row's index in a Parquet or
    Arrow file.
    bytes_read: the size of the chunk in bytes.
    files: the file of each record if each record has a file of its own, else empty.
    traced: False if a transform changed the number of rows; then all rows have the chunk's first file and position.
    valid_texts: the column with the text is known to be valid UTF-8.
    """

    file: str
    table: pa.Table
    positions: np.ndarray
    bytes_read: int
    files: tuple[str, ...] = ()
    traced: bool = True
    valid_texts: bool = False

    @property
    def record_files(self) -> str | Sequence[str]:
        """The one file that all records come from, or a sequence with each record's file."""
        return self.files or self.file

    def places(self) -> Iterator[tuple[str, int]]:
        """Yield the file and position of each record."""
        return zip(self.files or repeat(self.file), self.positions.tolist(), strict=False)

    def filter(self, mask: np.ndarray) -> Chunk:
        """Return the chunk with only the records selected by `mask` (bool [rows])."""
        files = tuple(np.array(self.files, object)[mask]) if self.files else ()
        return replace(self, table=self.table.filter(pa.array(mask)), positions=self.positions[mask], files=files)

    def single(self, row: int) -> Chunk:
        """Return the chunk with only the record in row `row`."""
        files = self.files[row : row + 1]
        return replace(self, table=self.table.slice(row, 1), positions=self.positions[row : row + 1], files=files)


Chunks = Iterator[Chunk]


def longest_record(config: Config) -> int:
    """Return the maximum size of a record with all its columns, in bytes."""
    return max(config.max_document_bytes, CHUNK_BYTES)


def chunked(records: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield records in lists of about CHUNK_BYTES. size_of: the size of a record in bytes."""
    chunk: list[T] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += size_of(record)
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def without_columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the table without the columns `names`; names of missing columns are ignored."""
    present = [name for name in names if name in table.column_names]
    return table.drop_columns(present) if present else table


def with_splits(chunk: Chunk, splits: Mapping[str, str]) -> Chunk:
    """Return the chunk with a column for each record's split. splits: the split of each file; empty if the source has
    no splits. Raises ColumnError if the file has a column of this name.
    """
    if not splits:
        return chunk
    if COLUMN in chunk.table.column_names:
        raise ColumnError(
            f"{one_line(chunk.file)} has a column {COLUMN!r}, but `splits` adds a column of this name; leave it out "
            f'(drop = ["{COLUMN}"]), or give each split a source of its own'
        )
    names = [splits[file] for file in chunk.files] or [splits[chunk.file]] * chunk.table.num_rows
    return replace(chunk, table=chunk.table.append_column(COLUMN, pa.array(names, pa.string())))


def require_unique_columns(path: str, names: Sequence[str]) -> None:
    """Raise ColumnError if two columns have the same name."""
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ColumnError(f"{one_line(path)} has two columns named {shown(repeated)}; rename one of them")
