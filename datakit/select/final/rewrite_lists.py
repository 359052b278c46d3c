"""Writes the selections and the lists of edits of partitions again, with more documents that leave: those that rules of
[select] remove, or those whose edited text equals that of an earlier document.

Cost: reading the ids, the attributes that the rules name, and the lists. If texts of the partition are edited, its
texts are read too, to count how edits change the size of the remaining ones. Memory: one row group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.conditions.applying import applying
from datakit.conditions.config import DROP, EDITED
from datakit.conditions.decisions import decide, reasons
from datakit.conditions.edited_facts import BY_EDIT, BYTES, ORIGINAL, STRETCHES
from datakit.conditions.expressions import Conditions
from datakit.conditions.phase_data import ID_BYTES, RuleCounts, Shared, Work
from datakit.conditions.records import RowGroup, read_records
from datakit.conditions.text_sizes import text_bytes
from datakit.engine.task import OutputFile, TaskContext, TaskResult
from datakit.select.edit_documents import WrittenEdits, edit_counters
from datakit.select.final.equal_texts import EQUAL, EqualRows
from datakit.select.write_selections import Written, selection_counters
from datakit.storage import urls
from datakit.storage.manifest import Partition
from datakit.storage.parquet import ShardWriter, iterate_shard
from datakit.storage.selection import edits, leaving_rows
from datakit.storage.selection.leaving_rows import FINAL

BETWEEN = "+"


@dataclass(frozen=True)
class Rewriting:
    """A partition whose lists are written again. work: what is read, and the path of the selection. before: the
    selection so far. edits_output: the path of the list of edits; "" if its source is not edited. number: the
    partition's number in the dataset.
    """

    work: Work
    before: Written
    edits_output: str
    number: int


@dataclass(frozen=True)
class Common:
    """Plain data for all tasks of a phase. equal: the runs that list the documents with equal texts, if they are to be
    dropped. edits: the names of the edits. last: True if the lists are not written again.
    """

    shared: Shared
    equal: EqualRows | None
    edits: list[str]
    last: bool


@dataclass(frozen=True)
class Rewritten:
    """The lists of one partition, and the counts of each rule."""

    written: Written
    edits: WrittenEdits | None
    counts: list[RuleCounts]


def rewrite(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the lists of some partitions again."""
    common, done, records = msgspec.convert(shared, Common), list[Rewritten](), 0
    conditions = Conditions(common.shared.rules, common.edits)
    for one in msgspec.convert(arguments["partitions"], list[Rewriting]):
        done.append(_Partition(one, common, conditions, context).rewritten())
        records += one.work.rows
        context.report(records, records * ID_BYTES)
    parts, lists = [one.written.partition for one in done], [one.edits for one in done if one.edits is not None]
    files = [OutputFile(part.path, part.bytes, part.xxh3, part.rows) for part in parts]
    counters = dict[str, int]()
    if common.last:
        counters = {**selection_counters([one.written for one in done]), **(edit_counters(lists) if lists else {})}
    details = {"partitions": msgspec.to_builtins(done)}
    outputs = (*files, *(entry.file for entry in lists))
    return TaskResult(outputs, counters, details, records=records, bytes_read=records * ID_BYTES)


class _Partition:
    """Writes the lists of one partition."""

    def __init__(self, work: Rewriting, common: Common, conditions: Conditions, context: TaskContext) -> None:
        self._work, self._common, self._conditions, self._context = work, common, conditions, context
        self._part, self._rules = work.work.part, common.shared.rules
        self._drops = [rule for rule in self._rules if rule.action == DROP]
        self._equal = common.equal.of(work.number, context) if common.equal is not None else np.empty(0, np.int64)
        self._counts = [RuleCounts() for _ in self._rules]
        self._combinations = Counter(work.before.combinations)
        self._stretches, self._sizes = Counter[str](), [0, 0]
        self._decided = [(np.empty(0, np.int64), np.empty(0, np.int64))]

    def rewritten(self) -> Rewritten:
        """Write the lists."""
        with ExitStack() as stack:
            selection = stack.enter_context(self._writer(self._work.work.output, leaving_rows))
            path = self._work.edits_output
            edited = stack.enter_context(self._writer(path, edits)) if path else None
            ends = self._write(selection, edited)
        info = selection.info
        source = self._part.source
        partition = Partition(
            self._work.work.output, source, info.rows, info.bytes, info.xxh3, first_id=ends[0], last_id=ends[1]
        )
        before = self._work.before
        written = Written(partition, before.rows_in, dict(self._combinations), before.marked_kept)
        listed = None
        if edited is not None:
            file = OutputFile(path, edited.info.bytes, edited.info.xxh3, edited.info.rows)
            stretches = {name: count for name, count in sorted(self._stretches.items()) if count}
            listed = WrittenEdits(source, file, stretches, *self._sizes)
        return Rewritten(written, listed, self._with_sizes())

    def _writer(self, path: str, kind: Any) -> ShardWriter:
        return ShardWriter(urls.join(self._context.step_directory, path), kind.SCHEMA, kind.DICTIONARY)

    def _write(self, selection: ShardWriter, edited: ShardWriter | None) -> tuple[str | None, str | None]:
        """Write both lists row group by row group. Return the first and the last id of the selection."""
        leaving = _Listed(self._part.leaving)
        changes = _Listed(self._part.edits)
        wanted, ends = dict(self._conditions.wanted), list[str]()
        if edited is not None:
            wanted[EDITED] = list(dict.fromkeys([*wanted.get(EDITED, ()), *self._facts()]))
        for group in read_records(self._part, wanted, self._common.shared.types):
            gone, table = self._leaving(group)
            self._count_edits(group, gone, edited)
            last = int(group.rows[-1])
            ends = _write_sorted(selection, [*leaving.up_to(last), table], ends)
            for rows in changes.up_to(last):
                staying = ~np.isin(rows["row"].to_numpy().astype(np.int64), group.rows[gone])
                assert edited is not None, "the partition has a list of edits"
                edited.write(rows.filter(pa.array(staying)))
        ends = _write_sorted(selection, [*leaving.up_to(None)], ends)
        return (ends[0], ends[1]) if ends else (None, None)

    def _leaving(self, group: RowGroup) -> tuple[np.ndarray, pa.Table]:
        """Return the indices of the documents of a row group that leave now, and their rows of the selection."""
        if self._common.equal is not None:
            gone = np.flatnonzero(np.isin(group.rows, self._equal))
            every = pa.array([[EQUAL]] * len(gone), leaving_rows.SCHEMA.field("reasons").type)
        else:
            gone, every = self._by_rules(group)
        for one in every.to_pylist():
            self._combinations[BETWEEN.join(one)] += 1
        columns = [
            group.ids.combine_chunks().take(pa.array(gone)), pa.array(group.rows[gone].astype(np.uint64)), every,
        ]  # fmt: skip
        return gone, pa.Table.from_arrays(columns, schema=leaving_rows.SCHEMA)

    def _by_rules(self, group: RowGroup) -> tuple[np.ndarray, pa.Array]:
        answers = self._conditions.answers(group.records, self._part.dataset)
        applies, missing = applying(group, answers, self._work.work, self._common.shared)
        found = decide(self._rules, applies)
        for number, before in enumerate(self._counts):
            decides = int((found.decisive == number).sum())
            self._counts[number] = before + RuleCounts(int(applies[number].sum()), decides, int(missing[number].sum()))
        gone = found.leaving
        self._decided.append((group.rows[gone], found.decisive[gone]))
        return gone, reasons(self._rules, applies, gone, FINAL).cast(leaving_rows.SCHEMA.field("reasons").type)

    def _with_sizes(self) -> list[RuleCounts]:
        """Return the counts of each rule with the bytes of text that it removes."""
        rows, decisive = (np.concatenate(parts) for parts in zip(*self._decided, strict=True))
        sizes = text_bytes(self._part.dataset, rows)
        return [
            one + RuleCounts(text_bytes=int(sizes[decisive == number].sum())) for number, one in enumerate(self._counts)
        ]

    def _facts(self) -> list[str]:
        return [ORIGINAL, BYTES, STRETCHES, *(BY_EDIT + name for name in self._common.edits)]

    def _count_edits(self, group: RowGroup, gone: np.ndarray, edited: ShardWriter | None) -> None:
        """Add the edits of the documents that stay to the counts."""
        if edited is None:
            return
        facts = group.records[EDITED].combine_chunks()
        staying = facts.field(STRETCHES).to_numpy() > 0
        staying[gone] = False
        for name in self._common.edits:
            self._stretches[name] += int(facts.field(BY_EDIT + name).to_numpy()[staying].sum())
        for place, name in enumerate((ORIGINAL, BYTES)):
            self._sizes[place] += int(facts.field(name).to_numpy()[staying].sum())


class _Listed:
    """The rows of a list, in order. url: None if it is empty."""

    def __init__(self, url: str | None) -> None:
        self._tables = iterate_shard(url) if url is not None else iter(())
        self._left: pa.Table | None = None

    def up_to(self, row: int | None) -> Iterator[pa.Table]:
        """Yield the rows that were not yielded before, up to this row of the partition; all if it is None."""
        while True:
            if self._left is None or not self._left.num_rows:
                self._left = next(self._tables, None)
                if self._left is None:
                    return
            rows = self._left["row"].to_numpy()
            count = len(rows) if row is None else int(np.searchsorted(rows, row, side="right"))
            if not count:
                return
            yield self._left.slice(0, count)
            self._left = self._left.slice(count)


def _write_sorted(writer: ShardWriter, tables: Sequence[pa.Table], ends: list[str]) -> list[str]:
    """Write rows in the order of the partition. Return the first and the last id so far. ends: those before."""
    filled = [table.select(leaving_rows.SCHEMA.names).cast(leaving_rows.SCHEMA) for table in tables if table.num_rows]
    if not filled:
        return ends
    table = pa.concat_tables(filled).sort_by("row").combine_chunks()
    writer.write(table)
    return [ends[0] if ends else table["id"][0].as_py(), table["id"][-1].as_py()]


def rule_totals(done: Sequence[Rewritten], names: Sequence[str]) -> dict[str, dict[str, RuleCounts]]:
    """Return the counts of each rule, by source and name."""
    found = dict[str, dict[str, RuleCounts]]()
    for one in done:
        mine = found.setdefault(one.written.partition.source, {name: RuleCounts() for name in names})
        for name, counts in zip(names, one.counts, strict=True):
            mine[name] = mine[name] + counts
    return found
