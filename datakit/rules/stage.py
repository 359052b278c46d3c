"""Implements stage `rules`: decides, from attributes and columns of documents, which documents leave before duplicates
are searched for. Otherwise, a retained document could be removed later, although its duplicates are gone already.

    data/<source>/part-00017-of-00106.parquet    the documents of the normalized partition of that name that leave

A list has the columns `id` and `row` (the document, and its row in the partition), `reason` (the rule that decided, as
"rule:short") and `reasons` (all rules that would have removed the document, in alphabetical order). It has one row for
each document that leaves, in the order of the partition. Dedup leaves these documents out, and select adds them to
those that leave for other reasons.

Rules are SQL expressions; the first one that applies to a document decides (`config.py`). A share such as the lowest
tenth is exact: tasks count sort keys in rounds until the document at which the share ends is known (`ranks.py`).

Cost: reading the ids and the attributes that the rules name, once and again in each round of ranks, and the texts of
the row groups from which documents leave, to count their bytes. Memory: one row group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from itertools import count

import msgspec
import pyarrow as pa

from datakit.engine.partition_grouping import neighbours
from datakit.engine.task import BATCH_HANG_SECONDS, Output, Phase, Plan, Step, StepInput, Task, TaskResult
from datakit.errors import CorruptError, EmptyStageError
from datakit.rules.conditions import Conditions
from datakit.rules.config import Config, Rule
from datakit.rules.phase_data import Applied, Ranked, RuleCounts, SearchState, Shared, Work
from datakit.rules.ranks import Search, counted
from datakit.rules.records import Attributed
from datakit.storage import urls
from datakit.storage.fingerprint import config_of
from datakit.storage.manifest import Partition, data_path, table_path
from datakit.storage.selection.leaving_rows import SCHEMA as LEAVING

NAME = "rules"
FORMAT_VERSION = 1
SCHEMA = pa.schema(
    [
        LEAVING.field("id"),
        LEAVING.field("row"),
        pa.field("reason", pa.string(), nullable=False),
        LEAVING.field("reasons"),
    ]
)
DICTIONARY = ("reason", "reasons.list.element")
MEMORY = 512 << 20


class SourceCounts(msgspec.Struct, frozen=True):
    """The counts of one source: its documents, those that leave, and what each rule did, in the order of the rules."""

    records_in: int
    leaving: int
    rules: dict[str, RuleCounts]


def check_conditions(rules: Sequence[Rule], annotators: Sequence[str]) -> None:
    """Raise RecipeError if an expression is not allowed or reads an annotator that is not among `annotators`."""
    Conditions(rules).check(annotators)


def plan(step: Step) -> Plan:
    """Plan the rounds that find ranks, and tasks that write the list of every partition."""
    rules, types = config_of(step.parameters, Config).rules, _types(step)
    annotators = step.inputs_of("annotate")
    conditions = Conditions(rules)
    conditions.check(sorted({name for entry in annotators for name in entry.manifest.details["tables"]}), types)
    works = [work for entry in step.inputs_of("normalize") for work in _works(entry, annotators, conditions)]
    shared = Shared(rules, types)
    cuts = yield from _cuts(works, shared)
    results = yield _phase("apply", "write_lists:apply", works, replace(shared, cuts=cuts))
    applied = [msgspec.convert(entry, Applied) for result in results for entry in result.details["partitions"]]
    sources = _counts(step.inputs_of("normalize"), applied, rules)
    if all(source.leaving == source.records_in for source in sources.values()):
        raise EmptyStageError(
            f"the rules remove all {sum(source.records_in for source in sources.values())} documents; check each rule "
            "with `datakit attributes show`, and correct the rules"
        )
    return Output([one.partition for one in applied], SCHEMA, details={"sources": msgspec.to_builtins(sources)})


def _types(step: Step) -> dict[str, str]:
    """Return the type of each column of the documents; of several types, that of the first source."""
    found: dict[str, str] = {}
    for entry in step.inputs_of("normalize"):
        for column in entry.manifest.schema:
            found.setdefault(column.name, column.type)
    return found


def _works(entry: StepInput, annotators: Sequence[StepInput], conditions: Conditions) -> list[Work]:
    """Return the partitions of a source, each with the tables that the rules read."""
    assert entry.source is not None
    partitions = entry.manifest.partitions_of(entry.source)
    mine = next((one for one in annotators if one.source == entry.source), None)
    unknown, sizes = _quarantined(mine), _sizes(mine, entry.source)
    found = []
    for partition in partitions:
        tables = _tables(mine, partition, sizes, conditions.annotators)
        dataset = urls.join(entry.directory, partition.path)
        part = Attributed(
            dataset, entry.source, {name: url for name, (url, _) in tables.items()}, unknown.get(partition.path, [])
        )
        size = sum(size for _, size in tables.values())
        found.append(Work(part, data_path(entry.source, urls.name(partition.path)), partition.rows, size))
    return found


def _sizes(annotate: StepInput | None, source: str) -> dict[str, int]:
    """Return the size of each table of a source, by its path."""
    return {} if annotate is None else {one.path: one.bytes for one in annotate.manifest.partitions_of(source)}


def _tables(
    annotate: StepInput | None, partition: Partition, sizes: Mapping[str, int], names: Sequence[str]
) -> dict[str, tuple[str, int]]:
    """Return the URL and the size of the table of each of these annotators, for one partition. Raises CorruptError if
    there is none.
    """
    found = {}
    for name in names:
        assert annotate is not None, "the conditions are checked"
        path = table_path(partition.source, name, urls.name(partition.path))
        if path not in sizes:
            raise CorruptError(f"{annotate.directory} has no {path}; remove this directory and run again")
        found[name] = urls.join(annotate.directory, path), sizes[path]
    return found


def _quarantined(annotate: StepInput | None) -> dict[str, list[int]]:
    """Return the rows that an annotate step left out, by partition."""
    from datakit.engine.scheduler.finish import read_quarantine  # a tenth of a second to import

    rows = defaultdict[str, list[int]](list)
    if annotate is not None and annotate.manifest.quarantine.records:
        for record in read_quarantine(annotate.directory):
            rows[record.file] += range(record.position, record.position + record.records)
    return rows


def _phase(name: str, function: str, works: Sequence[Work], shared: Shared) -> Phase:
    tasks = tuple(
        Task(
            f"{one.start:05d}",
            f"datakit.rules.{function}",
            {"partitions": msgspec.to_builtins(works[one.start : one.stop])},
            sum(work.bytes for work in works[one.start : one.stop]),
        )
        for one in neighbours([work.bytes for work in works])
    )
    return Phase(
        name, tasks, msgspec.to_builtins(shared), memory_bytes=MEMORY, memory_per_input_byte=1.0,
        hang_seconds=BATCH_HANG_SECONDS,
    )  # fmt: skip


def _cuts(works: Sequence[Work], shared: Shared) -> Generator[Phase, Sequence[TaskResult], dict[str, str]]:
    """Yield the rounds that find the key at which the share of each rule ends, and return these keys by the number of
    the rule, "" if the share contains no document.
    """
    cuts: dict[str, str] = {}
    searches = {number: Search() for number, rule in enumerate(shared.rules) if rule.ranks}
    for number in count():
        if not searches:
            return cuts
        states = tuple(SearchState(rule, f"{one.prefix:x}", one.bits, one.lists) for rule, one in searches.items())
        results = yield _phase(f"ranks-{number}", "count_ranks:count", works, replace(shared, searches=states))
        found = [msgspec.convert(result.details, Ranked) for result in results]
        for index, state in enumerate(states):
            search = searches.pop(state.rule)
            if state.lists:
                cuts[str(state.rule)] = sorted(key for one in found for key in one.keys[index])[search.rank]
                continue
            counts = counted(one.counts[index] for one in found)
            if search.remaining is None:
                search = _begun(shared.rules[state.rule], sum(counts.values()))
            if search is None:
                cuts[str(state.rule)] = ""
            else:
                searches[state.rule] = search.narrowed(counts)
    raise AssertionError("the loop ends by itself")


def _begun(rule: Rule, population: int) -> Search | None:
    """Return the search for the last document of the lowest or the first of the highest; None if there is none."""
    chosen = rule.chosen(population)
    if not chosen:
        return None
    return Search(rank=chosen - 1 if rule.lowest is not None else population - chosen)


def _counts(sources: Sequence[StepInput], applied: Sequence[Applied], rules: Sequence[Rule]) -> dict[str, SourceCounts]:
    """Add up the counts of each source. Raises CorruptError if they contradict its normalize step."""
    by_source = defaultdict[str, list[Applied]](list)
    for one in applied:
        by_source[one.partition.source].append(one)
    found = {}
    for entry in sources:
        source, mine = str(entry.source), by_source[str(entry.source)]
        rows = sum(one.rows_in for one in mine)
        if rows != entry.manifest.totals.rows:
            raise CorruptError(
                f"source {source!r}: normalize wrote {entry.manifest.totals.rows} documents, but {rows} were read; "
                "remove this step's directory and run again"
            )
        totals = [sum((one.counts[number] for one in mine), RuleCounts()) for number in range(len(rules))]
        leaving = sum(one.partition.rows for one in mine)
        found[source] = SourceCounts(
            rows, leaving, {rule.name: total for rule, total in zip(rules, totals, strict=True)}
        )
    return found
