"""Implements stage `passages`: finds lines, paragraphs and substrings that occur several times in the documents that
rules and dedup retain, and marks the copies as spans, which edits of [select] can cut or mask.

    data/<source>/part-00017-of-00106.parquet    the spans of the documents of the normalized partition of that name

A table has the column `id` and, for each search of the recipe, a column of spans that is named after the search. It has
one row for each document with spans, in the order of the partition. The kind of a span is the unit of its search.

The first copies of a passage, in the order of the dataset, stay unmarked. This is the order of the sources in the
recipe, then of ids, then of positions in the text. The result depends neither on the number of partitions nor on the
grouping of partitions into tasks.

The phases run in this order:

    passages    passages are found, hashed, and routed by hash; copies within documents are marked
    copies      passages with equal hashes are put in order, and all but the first ones are marked
    stretches, texts, substrings    substrings of documents are compared (`substrings/tasks.py`)
    write       one table per partition

Cost: reading the texts once, at two to four ns per byte for each search, and sorting 33 bytes per passage.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from datakit.engine.exchange.exchange import both, merged, run_sizes
from datakit.engine.exchange.row_buckets import RowBuckets, power_of_two
from datakit.engine.partition_grouping import neighbours
from datakit.engine.task import BATCH_HANG_SECONDS, Output, Phase, Plan, Preload, Step, Task, TaskResult
from datakit.errors import CorruptError
from datakit.passages.config import DATASET, SUBSTRING, SearchConfig
from datakit.passages.exchange_sizes import passage_share, stretch_share
from datakit.passages.phase_data import (
    COPIES,
    PASSAGES,
    REPEATS,
    Copied,
    Part,
    PartRange,
    Routed,
    Search,
    SearchCounts,
    Shared,
    Tables,
    Written,
    details_of,
)
from datakit.passages.substrings import phases
from datakit.passages.substrings.phases import Found, compared, sizes_of
from datakit.storage import urls
from datakit.storage.manifest import data_path
from datakit.storage.selection.leaving_rows import RULE, aligned
from datakit.text.spans import SPANS

NAME = "passages"
FORMAT_VERSION = 2
SEARCHES = "searches"  # the parameter that holds the settings of the searches, by name
DROP = "drop"  # the parameter that holds the kinds of duplicates that select removes
TASK_BYTES = 64 << 20
MEMORY = 512 << 20
PRELOADS = (
    Preload("datakit.passages.find_passages", "datakit.passages.find_passages:warm", kernels=True),
    *phases.PRELOADS,
)


@dataclass(frozen=True)
class Config:
    """The settings of the table [passages]. It has none of its own; its subtables are the searches."""


class SourceCounts(msgspec.Struct, frozen=True):
    """The counts of one source: the documents that were searched, those left out because rules or dedup remove them,
    and the counts of each search.
    """

    documents: int
    left_out: int
    searches: dict[str, SearchCounts]


def plan(step: Step) -> Plan:
    """Yield the phases in order, without those that would have nothing to do."""
    searches, parts = searches_of(step), parts_of(step)
    size = sum(part.text_bytes for part in parts)
    by_row = RowBuckets(sum(part.rows for part in parts), power_of_two(len(parts)))
    buckets = power_of_two(passage_share(searches) * size / TASK_BYTES)
    stretches = power_of_two(stretch_share(searches) * size / TASK_BYTES)
    shared = Shared(searches, _drop(step), buckets, by_row, stretches)
    reading = _phase("passages", "route:route", parts, [part.text_bytes for part in parts], shared)
    routed = yield reading
    copied = yield from _copied(step, routed, shared)
    stretch_runs = sizes_of(routed, [one.stretch_runs for one in details_of(routed, Routed)])
    substrings = yield from compared(step, stretch_runs, shared, reading)
    runs = [*(yield from _span_runs(step, routed, copied, by_row)), *substrings.runs]
    results = yield _phase("write", "write_tables:write", parts, [0] * len(parts), replace(shared, runs=runs))
    tables = details_of(results, Tables)
    written = [part for one in tables for part in one.parts]
    sources = _counts(searches, parts, details_of(routed, Routed), written)
    _check_documents(step, sources)
    _check_spans(searches, tables, details_of(routed, Routed), details_of(copied, Copied), substrings)
    _check_passages(searches, sources, details_of(copied, Copied), substrings)
    zeros = {f"passages/{kind}/{one.name}": 0 for one in searches for kind in ("found", "marked", "marked_bytes")}
    zeros |= {f"passages/repeated/{one.name}": 0 for one in searches if one.config.within == DATASET and
              one.config.unit != SUBSTRING}  # fmt: skip
    details = {"sources": msgspec.to_builtins(sources)}
    return Output([one.partition for one in written], schema_of(searches), zeros, details)


def schema_of(searches: Iterable[Search]) -> pa.Schema:
    """Return the columns of a table of spans."""
    columns = [pa.field(one.name, SPANS, nullable=False) for one in searches]
    return pa.schema([pa.field("id", pa.string(), nullable=False), *columns])


def searches_of(step: Step) -> list[Search]:
    """Return the searches of a step, in alphabetical order."""
    configs = msgspec.convert(step.parameters[SEARCHES], dict[str, SearchConfig])
    return [Search(name, number, config) for number, (name, config) in enumerate(sorted(configs.items()))]


def parts_of(step: Step) -> list[Part]:
    """Return the partitions in recipe order, each with the lists of its marked documents."""
    deciding, parts, row = [*step.inputs_of("rules"), *step.inputs_of("dedup")], list[Part](), 0
    for entry in step.inputs_of("normalize"):
        assert entry.source is not None
        partitions = entry.manifest.partitions_of(entry.source)
        lists = [aligned(one.directory, one.manifest, entry.source, partitions) for one in deciding]
        homes = [urls.relative(one.directory, step.directory) for one in deciding]
        here = urls.relative(entry.directory, step.directory)
        for number, partition in enumerate(partitions):
            marks = [
                f"{home}/{marked[number].path}"
                for home, marked in zip(homes, lists, strict=True)
                if marked[number].rows
            ]
            output, size = data_path(entry.source, urls.name(partition.path)), partition.text_bytes or partition.bytes
            parts.append(Part(entry.source, row, partition.rows, f"{here}/{partition.path}", marks, output, size))
            row += partition.rows
    return parts


def _drop(step: Step) -> list[str]:
    """Return the reasons for which marked documents leave."""
    rules = [rule for one in step.inputs_of("rules") for rule in one.manifest.parameters["rules"]]
    return [*step.parameters[DROP], *(RULE + rule["name"] for rule in rules if rule["action"] == "drop")]


def _phase(name: str, function: str, parts: Sequence[Part], sizes: Sequence[int], shared: Shared) -> Phase:
    """Return a phase with a task per group of neighboring parts. sizes: the number of bytes to read from each part."""
    tasks = tuple(
        Task(
            f"{one.start:05d}",
            f"datakit.passages.{function}",
            msgspec.to_builtins(PartRange(one.start, list(parts[one.start : one.stop]))),
            sum(sizes[one.start : one.stop]),
        )
        for one in neighbours([part.text_bytes for part in parts])
    )
    return Phase(
        name, tasks, msgspec.to_builtins(shared), PRELOADS, memory_bytes=MEMORY, memory_per_input_byte=3.0,
        hang_seconds=BATCH_HANG_SECONDS,
    )  # fmt: skip


def _copied(
    step: Step, routed: Sequence[TaskResult], shared: Shared
) -> Generator[Phase, Sequence[TaskResult], Sequence[TaskResult]]:
    """Yield the phase that finds copies in the dataset, and return its results."""
    sizes = sizes_of(routed, [one.runs for one in details_of(routed, Routed)])
    if not sizes:
        return []
    runs = yield from merged(step, PASSAGES, sizes, shared.buckets, readers=shared.buckets)
    each = sum(sizes.values()) // shared.buckets
    tasks = tuple(
        Task(f"{number:05d}", "datakit.passages.find_copies:find", {"bucket": number}, each)
        for number in range(shared.buckets)
    )
    common = msgspec.to_builtins(replace(shared, runs=runs))
    return (yield Phase("copies", tasks, common, memory_bytes=MEMORY, memory_per_input_byte=0.0, drops=both(PASSAGES)))


def _span_runs(
    step: Step, routed: Sequence[TaskResult], copied: Sequence[TaskResult], by_row: RowBuckets
) -> Generator[Phase, Sequence[TaskResult], list[str]]:
    """Return the runs of all spans."""
    own = sizes_of(routed, [one.span_runs for one in details_of(routed, Routed)])
    runs = yield from merged(step, REPEATS, own, by_row.count, readers=by_row.count)
    others = yield from merged(step, COPIES, run_sizes(copied), by_row.count, readers=by_row.count)
    return [*runs, *others]


def _counts(
    searches: Sequence[Search], parts: Sequence[Part], routed: Sequence[Routed], written: Sequence[Written]
) -> dict[str, SourceCounts]:
    """Add up the counts of each source."""
    read = [one for result in routed for one in result.read]
    found = {part.source: SourceCounts(0, 0, {one.name: SearchCounts() for one in searches}) for part in parts}
    for part, came, went in zip(parts, read, written, strict=True):
        before = found[part.source]
        counts = {
            one.name: before.searches[one.name] + SearchCounts(came.found[one.number]) + went.counts[one.number]
            for one in searches
        }
        found[part.source] = SourceCounts(before.documents + came.documents, before.left_out + came.left_out, counts)
    return found


def _check_documents(step: Step, sources: dict[str, SourceCounts]) -> None:
    """Raise CorruptError if a document was not read."""
    for entry in step.inputs_of("normalize"):
        source = str(entry.source)
        one = sources.get(source)
        read = one.documents + one.left_out if one is not None else 0
        _equal(f"source {source!r}: the documents that were read", read, entry.manifest.totals.rows)


def _check_spans(
    searches: Sequence[Search],
    tables: Sequence[Tables],
    routed: Sequence[Routed],
    copied: Sequence[Copied],
    substrings: Found,
) -> None:
    """Raise CorruptError if a span was lost before the tables were written."""
    for search in searches:
        number = search.number
        made = sum(one.repeated[number] for one in routed) + sum(one.marked[number] for one in copied)
        read = sum(one.read[number] for one in tables)
        _equal(f"search {search.name!r}: the spans", read, made + substrings.spans[number])


def _check_passages(
    searches: Sequence[Search], sources: dict[str, SourceCounts], copied: Sequence[Copied], substrings: Found
) -> None:
    """Raise CorruptError if a passage was lost between two phases."""
    for search in searches:
        number, found = search.number, sum(one.searches[search.name].found for one in sources.values())
        if search.config.within == DATASET:
            read = sum(one.read[number] for one in copied) + substrings.read[number]
            _equal(f"search {search.name!r}: the passages", read, found)
        undecided = substrings.undecided_read[number]
        _equal(f"search {search.name!r}: the undecided substrings", undecided, substrings.undecided[number])


def _equal(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise CorruptError(
            f"{what} number {found}, but {expected} were expected; remove this step's directory and run again"
        )
