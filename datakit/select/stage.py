"""Implements stage `select`: decides which normalized documents leave the dataset, and lists them with all reasons that
apply. Tokenize, train-tokenizer and consolidate read the normalized partitions and these lists, and leave out the
listed rows. So tokenize does not wait for consolidate, and the settings of this stage alone decide which normalized
documents are in a token cache. The output has one sparse file per partition (its format is defined in
`storage/selection/leaving_rows.py`), even if no document leaves. The step fails unless every document is counted, in
every partition and for every source.

After texts are edited, further phases apply what a recipe demands then: rules, the drop of equal texts, and document
buckets (`final/plan.py`).

Cost: reading the ids, and writing one small row per document that leaves. No text is read unless texts are edited.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from datakit.conditions.config import DROP, Rule, require_unique
from datakit.engine.counts import added
from datakit.engine.partition_grouping import neighbours
from datakit.engine.task import BATCH_HANG_SECONDS, Output, Phase, Plan, Step, StepInput, Task, TaskResult
from datakit.errors import CorruptError, EmptyStageError, RecipeError, suggestion
from datakit.select.bucket_config import Bucket
from datakit.select.final.drafts import Drafts, drafted, drafted_edits, in_order
from datakit.select.final.equal_texts import EQUAL
from datakit.select.final.plan import Demands, Finished, check, finish
from datakit.select.join import BETWEEN
from datakit.select.plan_edits import EDITS, edit_tasks, edited_pairs, edits_of, edits_written, lists_written
from datakit.select.write_selections import DRAFT, Pair, Written
from datakit.storage import urls
from datakit.storage.fingerprint import config_of, spelled_out
from datakit.storage.manifest import Partition, data_path
from datakit.storage.selection.leaving_rows import FINAL, RULE, SCHEMA, aligned
from datakit.toml_config import key

NAME = "select"
FORMAT_VERSION = 1
REASONS = ("exact", "fuzzy")  # the reasons in dedup's attributes
EQUAL_ACTIONS = ("report", DROP)


@dataclass(frozen=True)
class Config:
    """The settings of select: which marked documents leave."""

    drop: Annotated[
        tuple[str, ...],
        key("The kinds of duplicates to remove: `exact`, `fuzzy`. Other duplicates are kept and counted.", ["exact"]),
    ] = REASONS
    equal_after_editing: Annotated[
        str,
        key("What happens to a document whose text became equal to that of an earlier document by editing: `report` "
            "keeps and counts it, `drop` removes it.", "drop", EQUAL_ACTIONS),
    ] = "report"  # fmt: skip
    rules: tuple[Rule, ...] = ()
    buckets: tuple[Bucket, ...] = ()

    def __post_init__(self) -> None:
        for reason in self.drop:
            if reason not in REASONS:
                raise RecipeError(f"select.drop: unknown reason {reason!r}; {suggestion(reason, REASONS)}")
        if self.equal_after_editing not in EQUAL_ACTIONS:
            advice = suggestion(self.equal_after_editing, EQUAL_ACTIONS)
            raise RecipeError(f"select.equal_after_editing is {self.equal_after_editing!r}; {advice}")
        require_unique([rule.name for rule in self.rules], "rule")
        require_unique([bucket.name for bucket in self.buckets], "bucket")


class SourceCounts(msgspec.Struct, frozen=True):
    """The counts of one source: the documents that were read, those that leave (for each reason, and for each
    combination of reasons), and those that stay. text_bytes_in: the bytes of text of all documents, including those
    that leave.
    """

    records_in: int
    leaving: dict[str, int]
    combinations: dict[str, int]
    records_out: int
    text_bytes_in: int


def plan(step: Step) -> Plan:
    """Plan tasks that write the selection of every partition, and what follows after texts are edited."""
    config, edits = config_of(step.parameters, Config), edits_of(step)
    demands = Demands(config.rules, config.buckets, edits, config.equal_after_editing == DROP)
    pairs = [pair for entry in step.inputs_of("normalize") for pair in pairs_of(step, entry)]
    drop = reasons_to_leave(step)
    yield from check(step, demands)
    drafts = yield from _drafts(step, demands, pairs, drop)
    done: Finished = yield from finish(step, demands, pairs, drafts)
    by_source = defaultdict[str, list[Written]](list)
    for one in done.drafts.written:
        by_source[one.partition.source].append(one)
    sources = {str(entry.source): _counts(entry, by_source[str(entry.source)]) for entry in step.inputs_of("normalize")}
    if not any(source.records_out for source in sources.values()):
        raise EmptyStageError(
            f"select removed all {sum(source.records_in for source in sources.values())} documents; check the counters "
            "of earlier steps with `datakit inspect`"
        )
    files, counts = edits_written(done.drafts.lists)
    drop += [FINAL + rule.name for rule in config.rules if rule.action == DROP]
    drop += [EQUAL] if edits and demands.drop_equal else []
    details = {"drop": drop, "sources": msgspec.to_builtins(sources), **({EDITS: counts} if edits else {})}
    partitions = [entry.partition for entry in done.drafts.written]
    return Output(partitions, SCHEMA, done.counters, {**details, **done.details}, [*files, *done.files])


def _drafts(
    step: Step, demands: Demands, pairs: Sequence[Pair], drop: list[str]
) -> Generator[Phase, Sequence[TaskResult], Drafts]:
    """Yield the phase that lists the documents that leave because of rules, duplicates and edits, and the edits."""
    mine, edits = [drafted(pair, demands.rewritings) for pair in pairs], demands.edits
    with_edits = [drafted_edits(one, demands.rewritings) for one in edited_pairs(step, mine, edits)]
    edited = {one.pair.output for one in with_edits}
    others = [pair for pair in mine if pair.output not in edited]
    groups = neighbours([pair.id_bytes for pair in others])
    tasks = (*(_task(others[group.start : group.stop], drop) for group in groups), *edit_tasks(with_edits))
    shared: dict[str, Any] = {"drop": drop}
    shared |= {EDITS: {name: spelled_out(edit) for name, edit in edits.items()}} if edits else {}
    shared |= {DRAFT: True} if demands.rewritings else {}
    shared = shared if edits or demands.rewritings else {}
    results = yield Phase("select", tasks, shared, memory_per_input_byte=0, hang_seconds=BATCH_HANG_SECONDS)
    written = [msgspec.convert(entry, Written) for result in results for entry in result.details["partitions"]]
    return Drafts(in_order(written, pairs), lists_written(results))


def pairs_of(step: Step, entry: StepInput) -> list[Pair]:
    """Return the partitions of a source, each with the lists of its marked documents."""
    assert entry.source is not None
    partitions = entry.manifest.partitions_of(entry.source)
    deciding = [*step.inputs_of("rules"), *step.inputs_of("dedup")]
    lists = [aligned(one.directory, one.manifest, entry.source, partitions) for one in deciding]
    return [
        Pair(
            source=entry.source,
            dataset=urls.join(entry.directory, partition.path),
            marks=[
                urls.join(one.directory, marks[number].path)
                for one, marks in zip(deciding, lists, strict=True)
                if marks[number].rows
            ],
            output=data_path(entry.source, urls.name(partition.path)),
            rows=partition.rows,
        )
        for number, partition in enumerate(partitions)
    ]


def reasons_to_leave(step: Step) -> list[str]:
    """Return the reasons for which marked documents leave: those of dedup, and those of rules, in the order of the
    rules.
    """
    rules = [rule for one in step.inputs_of("rules") for rule in one.manifest.parameters["rules"]]
    by_rule = [RULE + rule["name"] for rule in rules if rule["action"] == "drop"]
    return [*config_of(step.parameters, Config).drop, *by_rule]


def _task(pairs: Sequence[Pair], drop: list[str]) -> Task:
    key = pairs[0].output if len(pairs) == 1 else f"{pairs[0].output} and {len(pairs) - 1} more"
    work = {"partitions": msgspec.to_builtins(pairs), "drop": drop}
    size = sum(pair.id_bytes for pair in pairs)
    return Task(key, "datakit.select.write_selections:select", work, size, bisect_argument="partitions")


def _counts(entry: StepInput, mine: Sequence[Written]) -> SourceCounts:
    """Add up the counts of a source. mine: the selections of its partitions. Raises CorruptError if the counts
    contradict its normalize step.
    """
    combinations = added(one.combinations for one in mine)
    leaving = Counter[str]()
    for combination, count in combinations.items():
        leaving.update(dict.fromkeys(combination.split(BETWEEN), count))
    partitions: list[Partition] = entry.manifest.partitions
    records_in = sum(one.rows_in for one in mine)
    if records_in != entry.manifest.totals.rows or len(mine) != len(partitions):
        raise CorruptError(
            f"source {entry.source!r}: normalize wrote {entry.manifest.totals.rows} documents in {len(partitions)} "
            f"partitions, but {records_in} in {len(mine)} were read; remove this step's directory and run again"
        )
    return SourceCounts(
        records_in,
        dict(sorted(leaving.items())),
        dict(sorted(combinations.items())),
        records_in - combinations.total(),
        sum(partition.text_bytes or 0 for partition in partitions),
    )
