"""Describes the columns of a sample, and finds those whose types conflict between files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from datakit.normalize.columns.schema_union import describe, shown, unify, unite
from datakit.normalize.readers.base import Chunk
from datakit.printable import one_line
from datakit.storage.row_size import row_sizes


@dataclass(frozen=True)
class ColumnReport:
    """A column: its type, the share of sampled records with a value in it, and the values' mean size in bytes."""

    name: str
    type: str
    filled: float
    mean_bytes: float

    @property
    def is_bytes(self) -> bool:
        """True if the column holds bytes, not text."""
        return self.type in ("binary", "large_binary") or self.type.startswith("fixed_size_binary")

    @property
    def weight(self) -> float:
        """The mean size of the column in bytes per record."""
        return self.mean_bytes * self.filled


def describe_columns(chunks: Sequence[Chunk]) -> tuple[ColumnReport, ...]:
    """Describe the columns of a sample. Raises RefusedError if their types conflict."""
    schema = unite((chunk.file, chunk.table.schema) for chunk in chunks)
    return tuple(_column(chunks, field) for field in schema)


def _column(chunks: Sequence[Chunk], field: pa.Field) -> ColumnReport:
    rows = filled = size = 0
    for chunk in chunks:
        rows += chunk.table.num_rows
        if field.name in chunk.table.column_names:
            column = chunk.table.select([field.name])
            filled += column.num_rows - column.column(0).null_count
            size += int(row_sizes(column).sum())
    return ColumnReport(field.name, str(field.type), round(filled / max(1, rows), 3), round(size / max(1, filled), 1))


def conflicts(chunks: Sequence[Chunk]) -> dict[str, str]:
    """Return the columns whose types in different files cannot be joined, with a message about each."""
    kinds: dict[str, tuple[pa.DataType, str]] = {}
    found: dict[str, str] = {}
    for chunk, field in _fields(chunks):
        known, file = kinds.get(field.name, (pa.null(), chunk.file))
        joined = unify(known, field.type)
        if joined is None:
            clash = f"{describe(known)} in {one_line(file)} and {describe(field.type)} in {one_line(chunk.file)}"
            found.setdefault(field.name, f"column {shown(field.name)} is {clash}")
        else:
            kinds[field.name] = joined, file if joined == known else chunk.file
    return found


def mixed_types(chunks: Sequence[Chunk]) -> dict[str, list[str]]:
    """Return the columns that have several types in different files, with these types. A run joins them."""
    kinds: dict[str, dict[str, None]] = {}
    for _, field in _fields(chunks):
        if not pa.types.is_null(field.type):
            kinds.setdefault(field.name, {})[str(field.type).removeprefix("large_")] = None
    return {name: [*found] for name, found in kinds.items() if len(found) > 1}


def partial_columns(chunks: Sequence[Chunk]) -> list[str]:
    """Return the columns that some of the files have and others do not, apart from files without columns."""
    by_file: dict[str, set[str]] = {}
    for chunk in chunks:
        by_file.setdefault(chunk.file, set()).update(chunk.table.column_names)
    files = [names for names in by_file.values() if names]
    every = dict.fromkeys(field.name for _, field in _fields(chunks))
    return [name for name in every if not all(name in names for names in files)]


def without(chunks: Sequence[Chunk], columns: Sequence[str]) -> tuple[Chunk, ...]:
    """Return the chunks without some columns."""
    return tuple(
        replace(chunk, table=chunk.table.drop_columns([name for name in columns if name in chunk.table.column_names]))
        for chunk in chunks
    )


def _fields(chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, pa.Field]]:
    return ((chunk, field) for chunk in chunks for field in chunk.table.schema)
