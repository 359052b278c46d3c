"""Implements stage `rules`: decides, from attributes and columns of documents, which documents leave before duplicates
are searched for. Otherwise, a retained document could be removed later, although its duplicates are gone already.

    data/<source>/part-00017-of-00106.parquet    the documents of the normalized partition of that name that leave

A list has the columns `id` and `row` (the document, and its row in the partition), `reason` (the rule that decided, as
"rule:short") and `reasons` (all rules that would have removed the document, in alphabetical order). It has one row for
each document that leaves, in the order of the partition. Dedup leaves these documents out, and select adds them to
those that leave for other reasons.

Rules are SQL expressions; the first one that applies to a document decides (`conditions/config.py`). A share such as
the lowest tenth is exact: tasks count sort keys in rounds until the document at which the share ends is known
(`conditions/ranks.py`).

Cost: reading the ids and the attributes that the rules name, once and again in each round of ranks, and the texts of
the row groups from which documents leave, to count their bytes. Memory: one row group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pyarrow as pa

from datakit.conditions.config import Rule
from datakit.conditions.expressions import Conditions
from datakit.conditions.find_cuts import find_cuts, phase_of
from datakit.conditions.phase_data import Applied, RuleCounts, Shared
from datakit.conditions.works import column_types, works_of
from datakit.engine.task import Output, Plan, Step, StepInput
from datakit.errors import CorruptError, EmptyStageError
from datakit.rules.config import Config
from datakit.storage.fingerprint import config_of
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


class SourceCounts(msgspec.Struct, frozen=True):
    """The counts of one source: its documents, those that leave, and what each rule did, in the order of the rules."""

    records_in: int
    leaving: int
    rules: dict[str, RuleCounts]


def plan(step: Step, *, all_may_leave: bool = False) -> Plan:
    """Plan the rounds that find ranks, and tasks that write the list of every partition. Raises EmptyStageError if all
    documents leave. all_may_leave: True for a preview, which shows what each rule would do in this case, too.
    """
    rules, types = config_of(step.parameters, Config).rules, column_types(step)
    annotators = step.inputs_of("annotate")
    conditions = Conditions(rules)
    conditions.check(sorted({name for entry in annotators for name in entry.manifest.details["tables"]}), types)
    works = [work for entry in step.inputs_of("normalize") for work in works_of(entry, annotators, conditions)]
    shared = Shared(rules, types)
    cuts = yield from find_cuts(works, shared)
    results = yield phase_of("apply", "datakit.rules.write_lists:apply", works, replace(shared, cuts=cuts))
    applied = [msgspec.convert(entry, Applied) for result in results for entry in result.details["partitions"]]
    sources = _counts(step.inputs_of("normalize"), applied, rules)
    if not all_may_leave and all(source.leaving == source.records_in for source in sources.values()):
        raise EmptyStageError(
            f"the rules remove all {sum(source.records_in for source in sources.values())} documents; `datakit rules "
            "preview` shows what each rule does; correct the rules"
        )
    return Output([one.partition for one in applied], SCHEMA, details={"sources": msgspec.to_builtins(sources)})


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
