"""Records where documents came from: the file and position of each kept or duplicate record, and the number of records,
documents and bytes of text in each file.

    origins/part-00017-of-00106.parquet   id, file, position, kept: the records of that partition's documents
    origins/files.parquet                 file, path, records, documents, text_bytes: all files of the source

The rows of a partition are sorted by id. Records with equal ids are in source order, and the first of them is kept. A
file is stored as a number, its index in the list of files, which is sorted by path. A position is a byte offset in the
uncompressed file, or the index of the row in a Parquet or Arrow file. It is null if a transform added or dropped rows
in the record's batch. The file is null as well if this batch held records of several files.

Cost: 12 bytes per record in the exchange, about 22 bytes per record in the output (mostly for the id), and half a
microsecond of CPU time per record. Memory: one table of a partition's origins, and one row group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from datakit.engine.task import OutputFile, Task, TaskContext, TaskResult
from datakit.normalize.readers.base import Chunk
from datakit.normalize.readers.slices import FileRange
from datakit.storage import urls
from datakit.storage.ids import ids_to_arrow
from datakit.storage.manifest import UNSEALED, Manifest
from datakit.storage.parquet import ROW_GROUP_ROWS, ShardWriter

DUPLICATES = "duplicates"  # the folder of the lists of exact duplicates
UNKNOWN = -1  # in the exchange, stands for a file or position that is not known
SCHEMA = pa.schema([("id", pa.string()), ("file", pa.int32()), ("position", pa.int64()), ("kept", pa.bool_())])
COUNTED = ("records", "documents", "text_bytes")
FILES = pa.schema([("file", pa.int32()), ("path", pa.string()), *((name, pa.int64()) for name in COUNTED)])


def origins_path(name: str = "files.parquet") -> str:
    """Return the path of the origins file for partition `name` or, by default, of the list of files."""
    return f"origins/{name}"


def duplicates_path(name: str) -> str:
    """Return the path of the list of exact duplicates in partition `name`."""
    return f"{DUPLICATES}/{name}"


def lists_of_duplicates(manifest: Manifest) -> list[str]:
    """Return the paths of a normalize step's lists of duplicates. Partitions without duplicates have no list."""
    if manifest.format == UNSEALED:
        return [entry["path"] for entry in manifest.details.get("duplicates", ())]
    return [file.path for file in manifest.files if file.path.startswith(f"{DUPLICATES}/")]


class FileCounts:
    """The counts for each file of one slice. counts: int64 [files, len(COUNTED)], in the order of the files.

    first: the index, in the list of files, of the slice's first file.
    """

    def __init__(self, paths: Iterable[str], first: int) -> None:
        self._first, self._numbers = first, {path: first + row for row, path in enumerate(dict.fromkeys(paths))}
        self.counts: np.ndarray = np.zeros((len(self._numbers), len(COUNTED)), np.int64)

    def add_records(self, rows: Chunk) -> None:
        """Count the records of a chunk to which no transform has been applied yet."""
        self._add(self.origins(rows)[0], slice(0, 1), np.ones((rows.table.num_rows, 1), np.int64))

    def add_documents(self, files: np.ndarray, sizes: np.ndarray) -> None:
        """Count documents, given each document's file number and the size of its text in bytes."""
        self._add(files, slice(1, 3), np.stack([np.ones_like(sizes), sizes], axis=1))

    def origins(self, rows: Chunk) -> tuple[np.ndarray, np.ndarray]:
        """Return the file number (int32) and position (int64) of each row; either can be UNKNOWN."""
        count = rows.table.num_rows
        if not rows.traced:
            file = UNKNOWN if rows.files else self._numbers[rows.file]
            return np.full(count, file, np.int32), np.full(count, UNKNOWN, np.int64)
        if rows.files:
            return np.array([self._numbers[file] for file in rows.files], np.int32), rows.positions
        return np.full(count, self._numbers[rows.file], np.int32), rows.positions

    def _add(self, files: np.ndarray, columns: slice, values: np.ndarray) -> None:
        known = files != UNKNOWN
        np.add.at(self.counts[:, columns], files[known] - self._first, values[known])


class Origins(NamedTuple):
    """The origins of N records, sorted by id. high, low: uint64 [N], the upper and lower halves of the ids.

    file, position: int32 [N] and int64 [N], as returned by `FileCounts.origins`. kept: bool [N], False for duplicates.
    """

    high: np.ndarray
    low: np.ndarray
    file: np.ndarray
    position: np.ndarray
    kept: np.ndarray

    def table(self, rows: slice) -> pa.Table:
        """Return the given rows as a table with the schema SCHEMA."""
        places = [pa.array(values[rows], mask=values[rows] == UNKNOWN) for values in (self.file, self.position)]
        return pa.table([ids_to_arrow(self.high[rows], self.low[rows]), *places, self.kept[rows]], schema=SCHEMA)


def write_origins(context: TaskContext, name: str, parts: Iterable[Origins]) -> OutputFile:
    """Write the origins of partition `name`, table by table. Only the rows of one row group are converted at a time."""
    path = origins_path(name)
    with ShardWriter(urls.join(context.step_directory, path), SCHEMA) as writer:
        for origins in parts:
            for start in range(0, len(origins.high), ROW_GROUP_ROWS):
                writer.write(origins.table(slice(start, start + ROW_GROUP_ROWS)))
    return OutputFile(path, writer.info.bytes, writer.info.xxh3, writer.info.rows)


def first_files(slices: Sequence[Sequence[FileRange]]) -> list[int]:
    """For each slice, return the index, in the list of files, of the slice's first file."""
    numbers = {path: number for number, path in enumerate(_paths(slices))}
    return [numbers[ranges[0].path] for ranges in slices]


def _paths(slices: Sequence[Sequence[FileRange]]) -> list[str]:
    return list(dict.fromkeys(part.path for ranges in slices for part in ranges))


def files_task(slices: Sequence[Sequence[FileRange]], counts: Sequence[Sequence[Sequence[int]]]) -> Task:
    """Return the task that writes the list of files, given the counts for each file of each slice."""
    paths = _paths(slices)
    total = np.zeros((len(paths), len(COUNTED)), np.int64)
    for first, part in zip(first_files(slices), counts, strict=True):
        total[first : first + len(part)] += np.array(part, np.int64)
    return Task("files", f"{__name__}:write_files", {"paths": paths, "counts": total.tobytes()})


def write_files(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the list of files with their counts."""
    counts = np.frombuffer(arguments["counts"], np.int64).reshape(-1, len(COUNTED))
    numbers = np.arange(len(counts), dtype=np.int32)
    with ShardWriter(urls.join(context.step_directory, origins_path()), FILES) as writer:
        writer.write(pa.table([numbers, pa.array(arguments["paths"], pa.string()), *counts.T], schema=FILES))
    return TaskResult((OutputFile(origins_path(), writer.info.bytes, writer.info.xxh3, writer.info.rows),))
