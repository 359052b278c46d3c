"""Writes the selections of partitions whose texts are edited, and the lists of these edits (the format is defined in
`storage/selection/edits.py`).

Only documents that stay are edited. A document whose text is blank after editing leaves for the reason `empty`. A
document of which an annotator has found no spans because it could not be annotated leaves for the reason `unannotated`:
nobody knows what would have to be edited. A document whose text is not changed, because each stretch already equals its
replacement, is not listed.

Cost: reading the tables of spans, and the texts of row groups with spans to edit. Memory: one row group of the
partition (16 MiB of text, or one longer document), twice more the texts that are edited, and one row group of each
table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datakit.engine.counts import added
from datakit.engine.task import OutputFile, TaskContext, TaskResult
from datakit.errors import ColumnError, CorruptError
from datakit.select.edit_config import CUT, EditConfig
from datakit.select.join import Joined, Marks, join
from datakit.select.stretches import Found, concatenated, merged
from datakit.select.write_selections import DRAFT, Pair, Written, selection_counters, write_selection
from datakit.storage import urls
from datakit.storage.ids import ADVICE, ids_to_arrow
from datakit.storage.parquet import ShardWriter, open_shard, read_group
from datakit.storage.selection import edits as format
from datakit.storage.selection import leaving_rows
from datakit.text.edited_texts import Stretches, edited, first_misplaced, text_ids
from datakit.text.spans import SPANS
from datakit.text.white_space import blank

EMPTY, UNANNOTATED = "empty", "unannotated"


@dataclass(frozen=True)
class EditedPair:
    """A partition whose texts are edited. edits: the names of the edits that apply to its source. tables: the URL of
    the table that holds each column of spans, such as `personal.spans`. output: the path of the list of edits, relative
    to the step's directory. unannotated: the rows of the documents that could not be annotated.
    """

    pair: Pair
    edits: list[str]
    tables: dict[str, str]
    output: str
    unannotated: list[int]
    text_bytes: int


@dataclass(frozen=True)
class WrittenEdits:
    """A written list of edits, with the number of stretches that each edit changes and the bytes of the texts of the
    listed documents before and after.
    """

    source: str
    file: OutputFile
    stretches: dict[str, int]
    text_bytes_before: int
    text_bytes_after: int


class Sink(Protocol):
    """Takes rows of a list of edits."""

    def write(self, rows: pa.Table) -> None:
        """Append rows."""


def select_and_edit(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the selections and the edits of the given partitions."""
    drop, edits = frozenset(shared["drop"]), msgspec.convert(shared["edits"], dict[str, EditConfig])
    written, lists, records, size = list[Written](), list[WrittenEdits](), 0, 0
    for one in msgspec.convert(arguments["partitions"], list[EditedPair]):
        editor = Editor(one, {name: edits[name] for name in sorted(one.edits)})
        url = urls.join(context.step_directory, one.output)
        with ShardWriter(url, format.SCHEMA, format.DICTIONARY) as writer:
            written.append(write_selection(one.pair, editor.groups(drop, writer), context))
        info = writer.info
        lists.append(editor.result(OutputFile(one.output, info.bytes, info.xxh3, info.rows)))
        records, size = records + one.pair.rows, size + one.text_bytes
        context.report(records, size)
    files = [OutputFile(part.path, part.bytes, part.xxh3, part.rows) for part in (entry.partition for entry in written)]
    details = {"partitions": msgspec.to_builtins(written), "edits": msgspec.to_builtins(lists)}
    counters = {} if DRAFT in shared else {**selection_counters(written), **edit_counters(lists)}
    return TaskResult((*files, *(entry.file for entry in lists)), counters, details, records=records, bytes_read=size)


def edit_counters(lists: list[WrittenEdits]) -> dict[str, int]:
    """Return the counters of written lists of edits."""
    stretches = added(entry.stretches for entry in lists)
    return {
        "select/edited": sum(entry.file.rows for entry in lists),
        **{f"select/edits/{name}": count for name, count in sorted(stretches.items())},
    }


class _Spans(Marks):
    """A column of spans of a table of annotate or passages."""

    def __init__(self, url: str, column: str) -> None:
        super().__init__(url, column, SPANS)

    def _values_of(self, table: pa.Table) -> pa.Array:
        if self._column not in table.column_names or not table[self._column].type.equals(SPANS):
            raise ColumnError(f"{self._url} has no column {self._column!r} of spans, which an edit of [select] names")
        return table[self._column].combine_chunks()


class Editor:
    """Edits the documents of one partition. edits: those that apply to it, in alphabetical order."""

    def __init__(self, work: EditedPair, edits: Mapping[str, EditConfig]) -> None:
        self._work, self._names, self._edits = work, pa.array(list(edits), pa.string()), list(edits.values())
        self._cuts = np.array([edit.action == CUT for edit in self._edits], bool)
        texts = [None if edit.action == CUT else edit.replacement for edit in self._edits]
        self._replacements = pa.array(texts, pa.string())
        self._spans = {place: _Spans(url, place.partition(".")[2]) for place, url in sorted(work.tables.items())}
        self._unannotated = np.array(sorted(work.unannotated), np.int64)
        self._stretches = np.zeros(len(self._edits), np.int64)
        self._before = self._after = 0

    def groups(self, drop: frozenset[str], writer: Sink) -> Iterator[Joined]:
        """Yield each row group after the join, with the documents that leave because of the edits, and write the edits
        of the others. Raises CorruptError if the spans do not belong to the partition.
        """
        dataset, first = self._work.pair.dataset, 0
        with open_shard(dataset) as shard:
            filled = [group for group in range(shard.num_row_groups) if shard.metadata.row_group(group).num_rows]
            for group, joined in zip(filled, join(dataset, self._work.pair.marks, drop), strict=True):
                unknown, found = self._to_edit(joined, first)
                empty = self._edit(shard, group, first, found, writer) if len(found.rows) else np.empty(0, np.int64)
                yield _with_leaving(joined, first, {EMPTY: empty, UNANNOTATED: unknown})
                first += joined.rows_in
        for stream in self._spans.values():
            stream.expect_end(dataset)

    def result(self, file: OutputFile) -> WrittenEdits:
        """Return the counts of the partition. file: the list of edits."""
        counts = zip(self._names.to_pylist(), self._stretches.tolist(), strict=True)
        stretches = {name: count for name, count in counts if count}
        return WrittenEdits(self._work.pair.source, file, stretches, self._before, self._after)

    def _to_edit(self, joined: Joined, first: int) -> tuple[np.ndarray, Found]:
        """Return the positions in the row group of the documents that stay although they could not be annotated, and
        the spans of all other documents that stay.
        """
        staying = np.ones(joined.rows_in, bool)
        staying[joined.leaving["row"].to_numpy().astype(np.int64) - first] = False
        inside = (self._unannotated >= first) & (self._unannotated < first + joined.rows_in)
        unknown = self._unannotated[inside] - first
        unknown = unknown[staying[unknown]]
        staying[unknown] = False
        found = self._found(*joined.ids)
        wanted = staying[found.rows]
        return unknown, Found(*(part[wanted] for part in found))

    def _found(self, high: np.ndarray, low: np.ndarray) -> Found:
        """Return the spans that each edit finds in the documents with these ids."""
        parts = []
        for place, stream in self._spans.items():
            positions, lists = stream.up_to(high, low, self._work.pair.dataset)
            sizes = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            starts, stops, kinds = lists.flatten().flatten()
            rows = np.repeat(positions, sizes)
            found = Found(rows, _int64(starts), _int64(stops), np.zeros(len(rows), np.int64))
            for number, edit in enumerate(self._edits):
                if edit.spans == place:
                    chosen = _of_kinds(kinds, edit.kinds)
                    parts.append(Found(*(part[chosen] for part in found))._replace(edits=np.full(chosen.sum(), number)))
        return concatenated(parts)

    def _edit(self, shard: pq.ParquetFile, group: int, first: int, found: Found, writer: Sink) -> np.ndarray:
        """Write the edits of the documents in a row group. Return the positions of those that become empty."""
        table = read_group(shard, group, self._work.pair.dataset, ["id", "text"])
        documents, rows = np.unique(found.rows, return_inverse=True)
        chosen = table.take(pa.array(documents)).combine_chunks()
        ids, texts = (chosen[name].combine_chunks() for name in ("id", "text"))
        self._check(texts, ids, found._replace(rows=rows))
        stretches = merged(found._replace(rows=rows), self._cuts)
        replacements = self._replacements.take(pa.array(stretches.edits))
        result = edited(texts, Stretches(stretches.rows, stretches.starts, stretches.stops, replacements))
        edited_ids, empty = text_ids(result), blank(result).to_numpy(zero_copy_only=False)
        changed = pc.call_function("not_equal", [edited_ids, ids]).to_numpy(zero_copy_only=False) & ~empty
        self._count(stretches, changed, texts, result)
        columns = [ids, pa.array((first + documents).astype(np.uint64)), edited_ids, self._lists(stretches, len(ids))]
        listed = pa.Table.from_arrays(columns, schema=format.SCHEMA)
        writer.write(listed.filter(pa.array(changed)))
        return documents[empty]

    def _check(self, texts: pa.Array, ids: pa.Array, found: Found) -> None:
        """Raise CorruptError if a span does not fit its text."""
        empty = pa.nulls(len(found.rows), pa.string())
        wrong = first_misplaced(texts, Stretches(found.rows, found.starts, found.stops, empty))
        if wrong >= 0:
            url = self._work.tables[self._edits[int(found.edits[wrong])].spans]
            raise CorruptError(
                f"{url}: a span of document {ids[int(found.rows[wrong])]} is empty, outside the text or divides a "
                f"character; {ADVICE}"
            )

    def _lists(self, stretches: Found, documents: int) -> pa.Array:
        """Return the stretches as one list per document."""
        ends = np.searchsorted(stretches.rows, np.arange(documents + 1)).astype(np.int32)
        edits = pa.array(stretches.edits)
        columns = [
            pa.array(stretches.starts.astype(np.uint64)), pa.array(stretches.stops.astype(np.uint64)),
            self._replacements.take(edits), self._names.take(edits),
        ]  # fmt: skip
        values = pa.StructArray.from_arrays(columns, fields=list(format.STRETCH))
        return pa.ListArray.from_arrays(pa.array(ends), values, type=format.SCHEMA.field("stretches").type)

    def _count(self, stretches: Found, changed: np.ndarray, before: pa.Array, after: pa.Array) -> None:
        self._stretches += np.bincount(stretches.edits[changed[stretches.rows]], minlength=len(self._edits))
        for texts, name in ((before, "_before"), (after, "_after")):
            sizes = pc.call_function("binary_length", [texts]).to_numpy(zero_copy_only=False)
            setattr(self, name, getattr(self, name) + int(sizes[changed].sum()))


def _of_kinds(kinds: pa.Array, wanted: tuple[str, ...] | None) -> np.ndarray:
    """Return which spans are of a wanted kind, bool [N]; None stands for all kinds."""
    if wanted is None:
        return np.ones(len(kinds), bool)
    options = pc.SetLookupOptions(pa.array(wanted, pa.string()))
    return pc.call_function("is_in", [kinds], options).to_numpy(zero_copy_only=False)


def _int64(column: pa.Array) -> np.ndarray:
    """Return a column of uint64 as int64 [N]; numbers from 2^63 on become negative, so they fit no text."""
    return column.to_numpy(zero_copy_only=False).astype(np.int64)


def _with_leaving(joined: Joined, first: int, more: Mapping[str, np.ndarray]) -> Joined:
    """Return a row group with more documents that leave. first: the row of the group's first document. more: for each
    reason, the positions of the documents.
    """
    if not any(map(len, more.values())):
        return joined
    high, low = joined.ids
    tables = [joined.leaving, *(_leaving(high[at], low[at], first + at, reason) for reason, at in more.items())]
    leaving = pa.concat_tables(tables).sort_by("row").combine_chunks()
    combinations = joined.combinations + Counter({reason: len(at) for reason, at in more.items() if len(at)})
    return replace(joined, leaving=leaving, combinations=combinations)


def _leaving(high: np.ndarray, low: np.ndarray, rows: np.ndarray, reason: str) -> pa.Table:
    ends = pa.array(np.arange(len(rows) + 1, dtype=np.int32))
    kind = leaving_rows.SCHEMA.field("reasons").type
    reasons = pa.ListArray.from_arrays(ends, pa.array([reason] * len(rows), pa.string())).cast(kind)
    columns = [ids_to_arrow(high, low), pa.array(rows.astype(np.uint64)), reasons]
    return pa.Table.from_arrays(columns, schema=leaving_rows.SCHEMA)
