"""Decodes a row group one row at a time, to identify the row that cannot be decoded, or whose decoding exhausts memory.

A few bytes of a Parquet file may expand to a cell of many GB. Dictionary-encoded string columns are therefore not
expanded here, so even such a cell can be decoded; it is then left out because it is too long. Any other large cell has
to be expanded. pyarrow cannot pass over a row without decoding it: if the machine does not have enough memory for a
row, the rows after it in its row group are quarantined with it.

Cost: about 30 microseconds a row, and one pass over the dictionaries for each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from datakit.engine.task import ALL_RECORDS, TaskContext
from datakit.normalize.columns.schema_union import fit_column, plain_type
from datakit.normalize.readers.columnar.tables import DAMAGE, MOST_ROWS, PIECE_BYTES
from datakit.normalize.readers.sound_arrays import check_arrays
from datakit.storage.row_size import row_sizes

ALL = (ALL_RECORDS.file, ALL_RECORDS.position)
# The dictionaries of a row group are read once for each of its rows. This limits the sum of all these reads; reading
# this many bytes takes about a minute.
MOST_DICTIONARY_BYTES = 1 << 37


class ImpassableError(Exception):
    """Decoding ends at a row to be skipped, because no row follows it or because two attempts died decoding it."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def open_with_dictionaries(source: BinaryIO, file: pq.ParquetFile, group: int) -> pq.ParquetFile:
    """Open `file` again from its `source`, to read the dictionary-encoded columns of this row group without expanding
    them. Returns `file` if there are no such columns, or if reading the dictionaries for each row would take too long.
    """
    info = file.metadata.row_group(group)
    columns = [info.column(number) for number in range(info.num_columns)]
    maps = tuple(f"{field.name}." for field in file.schema_arrow if _contains_map(field.type))  # cannot be cast
    found = [
        column for column in columns
        if column.physical_type == "BYTE_ARRAY" and column.has_dictionary_page
        and not column.path_in_schema.startswith(maps)
    ]  # fmt: skip
    if not found or info.num_rows * sum(column.total_uncompressed_size for column in found) > MOST_DICTIONARY_BYTES:
        return file
    paths = [column.path_in_schema for column in found]
    return pq.ParquetFile(source, read_dictionary=paths, page_checksum_verification=True)


def _contains_map(kind: pa.DataType) -> bool:
    return types.is_map(kind) or any(_contains_map(kind.field(number).type) for number in range(kind.num_fields))


def row_by_row(
    task: TaskContext, path: str, batches: Iterator[pa.RecordBatch], places: range, schema: pa.Schema
) -> Iterator[pa.Table]:
    """Decode the rows in `places` one by one, reporting each as in progress; yield tables of up to about 64 MiB.

    batches: batches of one row each. schema: the schema to which the tables are converted, except for a row of more
    than 64 MiB, which is yielded as it was decoded. Raises ImpassableError at a row to be skipped if no row follows, or
    if two attempts died while it was decoded.
    """
    pending: list[pa.Table] = []
    size = 0
    try:
        for place in places:
            if (path, place) in task.skip and (place == places[-1] or {(path, place), ALL} <= task.try_singly):
                raise ImpassableError(place)
            task.hold(path, place, places[-1] + 1 - place if (path, place) in task.skip else 1)
            batch = next(batches, None)
            if batch is None:
                break
            table = pa.Table.from_batches([batch])
            check_arrays(table)
            row_size = int(row_sizes(table)[0])
            if pending and (size + row_size > PIECE_BYTES or len(pending) == MOST_ROWS):
                yield pa.concat_tables(pending).combine_chunks()
                pending, size = [], 0
            if row_size > PIECE_BYTES:
                yield table
            else:
                pending.append(_fitted(table, schema))
                size += row_size
    except (ImpassableError, *DAMAGE):
        if pending:
            yield pa.concat_tables(pending).combine_chunks()
        raise
    if pending:
        yield pa.concat_tables(pending).combine_chunks()


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with columns of the plain types of `schema`, as if no dictionary had been kept."""
    kinds = [plain_type(schema.field(name).type) for name in table.column_names]
    columns = [fit_column(column, kind) for column, kind in zip(table.columns, kinds, strict=True)]
    return pa.table(columns, names=table.column_names)
