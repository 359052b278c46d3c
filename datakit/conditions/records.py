"""Reads the columns that expressions of rules name, for the documents of a partition. Each row group gives one table,
with a struct column for each annotator, a struct column for the document's own columns, and the column `source`.

Attributes are found by id, as the tables of annotators and the partition are sorted by it. A document without a row in
a table has null in all its columns or, in a column of lists, an empty list, because a sparse table leaves out documents
in which nothing was found. A document that its annotator could not process (it is in quarantine) has null even in
columns of lists. For a column of spans such as `spans`, the column `spans_kinds` lists the kinds of the spans.

The expressions of select see only the documents that stay, and also the struct `edited` (`edited_facts.py`).

Cost: reading the ids, and the columns that the expressions name. Memory: one row group of each table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from datakit.conditions.config import DOCUMENT, EDITED, SOURCE
from datakit.conditions.edited_facts import EditedFacts
from datakit.errors import ColumnError
from datakit.storage.ids import OrderedIds
from datakit.storage.parquet import iterate_shard, open_shard
from datakit.storage.selection.leaving_rows import LeavingRows
from datakit.storage.selection.matching import MatchedRows

KINDS = "_kinds"  # the suffix of the column that lists the kinds of a column of spans
ID = "id"


@dataclass(frozen=True)
class Attributed:
    """A partition and the tables that describe it. dataset: the URL of the partition. source: its source. tables: the
    URL of each annotator's table. unknown: the rows of the documents that have no attributes, because they are in
    quarantine. leaving, edits: the URLs of the lists of the rows that leave, which are not yielded, and of the edits;
    None if there are none.
    """

    dataset: str
    source: str
    tables: dict[str, str]
    unknown: list[int] = field(default_factory=list)
    leaving: str | None = None
    edits: str | None = None


@dataclass(frozen=True)
class RowGroup:
    """Some documents of a partition. high, low: the halves of their ids, uint64 [N]. rows: their rows in the partition,
    int64 [N]. records: what expressions read, N rows.
    """

    ids: pa.ChunkedArray
    high: np.ndarray
    low: np.ndarray
    rows: np.ndarray
    records: pa.Table

    def only(self, chosen: np.ndarray) -> RowGroup:
        """Return the documents for which `chosen`, bool [N], is true."""
        ids, records = (one.filter(pa.array(chosen)) for one in (self.ids, self.records))
        return RowGroup(ids, self.high[chosen], self.low[chosen], self.rows[chosen], records)


def read_records(part: Attributed, wanted: Mapping[str, Sequence[str]], types: Mapping[str, str]) -> Iterator[RowGroup]:
    """Yield the documents of each row group of a partition, if it has some.

    wanted: the columns to read, by the struct that holds them. types: the Arrow types, as strings, of the documents'
    columns over all sources; a column that this partition lacks is null. Raises ColumnError for an annotator without a
    table, or a table without a column, and CorruptError if the files do not belong together.
    """
    own = list(wanted.get(DOCUMENT, ()))
    present = _present(part.dataset, own)
    streams = {
        name: _Attributes(name, part.tables, columns)
        for name, columns in wanted.items()
        if name not in (DOCUMENT, SOURCE, EDITED)
    }
    facts = EditedFacts(part.edits, part.dataset, wanted.get(EDITED, ()))
    ids, leaving, first = OrderedIds(part.dataset), LeavingRows(part.leaving, part.dataset), 0
    for table in iterate_shard(part.dataset, list(dict.fromkeys([ID, *present, *facts.columns]))):
        if not table.num_rows:
            continue
        high, low = ids.parse(table[ID])
        unknown = _unknown(part.unknown, first, table.num_rows)
        columns = {name: stream.of(high, low, unknown, part.dataset) for name, stream in streams.items()}
        if own:
            columns[DOCUMENT] = _document(table, own, present, types)
        if facts.names:
            columns[EDITED] = facts.of(table)
        columns[SOURCE] = pa.repeat(pa.scalar(part.source), table.num_rows)
        group = RowGroup(table[ID], high, low, np.arange(first, first + table.num_rows), pa.table(columns))
        staying = leaving.staying(table[ID])
        first += table.num_rows
        group = group if staying is None else group.only(staying)
        if len(group.rows):
            yield group
    for stream in streams.values():
        stream.expect_end(part.dataset)
    leaving.expect_end()
    facts.expect_end()


def _present(dataset: str, columns: Sequence[str]) -> list[str]:
    if not columns:
        return []
    with open_shard(dataset) as shard:
        names = shard.schema_arrow.names
    return [name for name in columns if name in names]


def _document(table: pa.Table, own: Sequence[str], present: Sequence[str], types: Mapping[str, str]) -> pa.StructArray:
    columns = [
        table[name].combine_chunks() if name in present else pa.nulls(table.num_rows, _type(types.get(name, "null")))
        for name in own
    ]
    return pa.StructArray.from_arrays(columns, names=list(own))


def _type(name: str) -> pa.DataType:
    """Return the Arrow type with this name; null for a nested type, whose name cannot be parsed."""
    try:
        return pa.type_for_alias(name)
    except ValueError:
        return pa.null()


def _unknown(rows: Sequence[int], first: int, count: int) -> np.ndarray:
    mask = np.zeros(count, bool)
    here = np.array(rows, np.int64) - first
    mask[here[(here >= 0) & (here < count)]] = True
    return mask


def table_field(column: str, schema: pa.Schema, annotator: str) -> tuple[pa.Field, bool]:
    """Return the column of an annotator's table that the column of expressions is made from, and True if its kinds are.
    Raises ColumnError if there is none.
    """
    base = column.removesuffix(KINDS)
    if column != base and column not in schema.names and base in schema.names:
        return schema.field(base), True
    if column in schema.names and column != ID:
        return schema.field(column), False
    known = [name for name in schema.names if name != ID]
    spans = [name + KINDS for name in known if _is_spans(schema.field(name).type)]
    raise ColumnError(
        f"a rule reads {annotator}.{column}, but the table of {annotator!r} has only {', '.join([*known, *spans])}"
    )


class _Attributes:
    """The rows of an annotator's table, as a struct column of some of its columns."""

    def __init__(self, name: str, tables: Mapping[str, str], columns: Sequence[str]) -> None:
        self._url = tables[name]
        with open_shard(self._url) as shard:
            schema = shard.schema_arrow
        self._fields = [table_field(column, schema, name) for column in columns]
        self._names = list(columns)
        read = dict.fromkeys(stored.name for stored, _ in self._fields)
        self._rows = MatchedRows(self._url, list(read))

    def of(self, high: np.ndarray, low: np.ndarray, unknown: np.ndarray, dataset: str) -> pa.StructArray:
        """Return the attributes of the documents with these ids. unknown: those whose attributes are unknown."""
        positions, rows = self._rows.up_to(high, low, dataset)
        places = np.full(len(high), -1, np.int64)
        places[positions] = np.arange(len(positions))
        absent = places < 0
        indices = pa.array(places, mask=absent)
        columns = []
        for stored, kinds in self._fields:
            values = pa.nulls(0, stored.type) if rows is None else rows[stored.name].combine_chunks()
            column = values.take(indices)
            if pa.types.is_list(stored.type) or pa.types.is_large_list(stored.type):
                column = _with_empty_lists(column, absent & ~unknown)
            columns.append(_kinds(column) if kinds else column)
        return pa.StructArray.from_arrays(columns, names=self._names)

    def expect_end(self, dataset: str) -> None:
        """Raise CorruptError if the table has rows beyond the end of the partition."""
        self._rows.expect_end(dataset)


def _is_spans(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    return pa.types.is_struct(kind.value_type) and "kind" in [one.name for one in kind.value_type]


def _with_empty_lists(column: pa.Array, empty: np.ndarray) -> pa.Array:
    """Return a column of lists with empty lists in place of the nulls for which `empty`, bool [N], is true."""
    valid = column.is_valid().to_numpy(zero_copy_only=False) | empty
    large = pa.types.is_large_list(column.type)
    lengths = column.value_lengths().fill_null(0).to_numpy()
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64 if large else np.int32)
    kind = pa.LargeListArray if large else pa.ListArray
    return kind.from_arrays(pa.array(ends), column.flatten(), type=column.type, mask=pa.array(~valid))


def _kinds(column: pa.Array) -> pa.Array:
    """Return the kinds of a column of lists of spans, as lists."""
    values = column.flatten().field("kind")
    large = pa.types.is_large_list(column.type)
    lengths = column.value_lengths().fill_null(0).to_numpy()
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64 if large else np.int32)
    kind = pa.LargeListArray if large else pa.ListArray
    return kind.from_arrays(pa.array(ends), values, mask=pa.array(column.is_null().to_numpy(zero_copy_only=False)))
