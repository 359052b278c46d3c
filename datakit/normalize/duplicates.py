"""Lists the exact duplicates of a partition: `duplicates/part-00017-of-00106.parquet` has a row for each record that
was dropped because an earlier record has the same text. This list and the list of origins are written from the same
rows: the id, origin and `source_id` of every record, sorted by id and then in source order. The first record with an id
is the one that is kept.

Memory: a few tables of such rows (about 16 MiB each), whatever the number of copies of a text.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from datakit.engine.exchange.run_file import windows
from datakit.engine.exchange.sorted_blocks import SortedBlocks
from datakit.engine.task import OutputFile, TaskContext
from datakit.normalize.columns.schema_union import fit_column
from datakit.normalize.origins import Origins, duplicates_path
from datakit.normalize.route import FILE, HIGH, LOW, POSITION, UPSTREAM
from datakit.storage import urls
from datakit.storage.ids import HEX_DIGITS, ids_to_arrow
from datakit.storage.parquet import ShardWriter
from datakit.text.string_buffers import string_buffers

SCHEMA = pa.schema([("id", pa.string()), ("source_id", pa.string()), ("kept_source_id", pa.string())])
NAME = "name"  # the column of `about`'s result that holds `source_id`
WRITTEN_BYTES = 16 << 20  # maximum size of the rows converted at a time, unless one row is larger


def about(rows: pa.Table, source_id: str | None) -> pa.Table:
    """Return the columns of exchange rows that the lists need. source_id: the upstream column, if any, that becomes the
    output's `source_id`.
    """
    name = None if source_id is None else UPSTREAM + source_id
    if name is not None and name in rows.column_names:
        names = fit_column(rows.column(name), pa.large_string())
    else:
        names = pa.chunked_array([pa.nulls(rows.num_rows, pa.large_string())])
    return rows.select([HIGH, LOW, FILE, POSITION]).append_column(NAME, names)


def changes(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Return, for each id of a sorted list, whether it differs from the previous id: bool [N]."""
    first = np.ones(len(high), bool)
    first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return first


def origins(rows: SortedBlocks) -> Iterator[Origins]:
    """Yield the origins of all rows."""
    for table, kept in _marked(rows):
        high, low, file, position = (table.column(name).to_numpy() for name in (HIGH, LOW, FILE, POSITION))
        yield Origins(high, low, file, position, kept)


def write_duplicates(context: TaskContext, name: str, rows: SortedBlocks) -> OutputFile:
    """Write the list of duplicates in partition `name`."""
    path = duplicates_path(name)
    with ShardWriter(urls.join(context.step_directory, path), SCHEMA) as writer:
        kept_name = pa.nulls(1, pa.large_string())
        for table, kept in _marked(rows):
            names = pa.concat_arrays([kept_name, *table.column(NAME).chunks])
            kept_at = np.maximum.accumulate(np.where(kept, 1 + np.arange(len(kept)), 0))
            kept_name = names.slice(int(kept_at[-1]), 1)
            for part in _tables(table, names, np.flatnonzero(~kept), kept_at[~kept]):
                writer.write(part)
    return OutputFile(path, writer.info.bytes, writer.info.xxh3, writer.info.rows)


def _marked(rows: SortedBlocks) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """Yield the rows, and whether each is the first with its id: bool [N]."""
    last: tuple[int, int] | None = None
    for table in rows.merged():
        high, low = table.column(HIGH).to_numpy(), table.column(LOW).to_numpy()
        kept = changes(high, low)
        kept[0] = (high[0], low[0]) != last
        last = high[-1], low[-1]
        yield table, kept


def _tables(table: pa.Table, names: pa.Array, rows: np.ndarray, kept_at: np.ndarray) -> Iterator[pa.Table]:
    """Yield the output for `rows`. names: the name of row i is at index i + 1. kept_at: for each row, the index in
    `names` of the record that is kept instead.
    """
    lengths = np.diff(string_buffers(names)[1])
    high, low = table.column(HIGH).to_numpy(), table.column(LOW).to_numpy()
    for first, stop in windows(HEX_DIGITS + lengths[rows + 1] + lengths[kept_at], WRITTEN_BYTES):
        mine = rows[first:stop]
        found = (names.take(pa.array(at)).cast(pa.string()) for at in (mine + 1, kept_at[first:stop]))
        yield pa.table([ids_to_arrow(high[mine], low[mine]), *found], schema=SCHEMA)
