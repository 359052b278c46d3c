"""Plans the phases of select that follow the editing of texts. They run in this order:

    1. rules of [select] remove documents: ranks, then all lists are written again
    2. texts that became equal are counted or dropped: two phases that find them (`equal_texts.py`), and if they are
       dropped, all lists are written again
    3. the documents that stay are assigned to buckets: ranks, then one list per bucket and partition

A recipe without rules, edits and buckets has none of these phases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import msgspec

from datakit.conditions.check_tables import check_columns
from datakit.conditions.config import Rule
from datakit.conditions.expressions import Conditions
from datakit.conditions.find_cuts import MEMORY, find_cuts, phase_of
from datakit.conditions.phase_data import ID_BYTES, Shared, Work
from datakit.conditions.works import column_types, works_of
from datakit.engine.exchange.exchange import merged, run_sizes
from datakit.engine.partition_grouping import neighbours
from datakit.engine.task import BATCH_HANG_SECONDS, OutputFile, Phase, Step, Task, TaskResult
from datakit.errors import ColumnError
from datakit.select.bucket_config import Bucket
from datakit.select.edit_config import EditConfig
from datakit.select.final import equal_texts
from datakit.select.final.assign_buckets import Assigned, BucketCounts
from datakit.select.final.drafts import Drafts, folder_of
from datakit.select.final.equal_texts import EQUAL, Compared, Comparison, EqualRows
from datakit.select.final.rewrite_lists import Common, Rewriting, Rewritten, rule_totals
from datakit.select.write_selections import Pair
from datakit.storage import urls
from datakit.storage.selection.buckets import FOLDER as BUCKETS
from datakit.storage.selection.edits import edits_path

RULES = "rules"  # the parameter and the details of rules
BUCKET_COLUMN = "bucket"
TASK_BYTES = 64 << 20
Phases = Generator[Phase, Sequence[TaskResult], Any]


@dataclass(frozen=True)
class Demands:
    """The settings of final rules, equal texts and document buckets."""

    rules: tuple[Rule, ...]
    buckets: tuple[Bucket, ...]
    edits: Mapping[str, EditConfig]
    drop_equal: bool

    @property
    def rewritings(self) -> int:
        """The number of times that the lists are written again."""
        return bool(self.rules) + (bool(self.edits) and self.drop_equal)


@dataclass
class Finished:
    """The outcome that the step reports. pairs: all partitions, with the paths of their selections. drafts: their lists
    so far, in the end the final ones. files: the lists of buckets.
    """

    pairs: Sequence[Pair]
    drafts: Drafts
    details: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    files: list[OutputFile] = field(default_factory=list)


def check(step: Step, demands: Demands) -> Iterator[Phase]:
    """Check the columns that rules and buckets read, and the name of the column for the buckets, before texts are
    edited. Yields a phase if tables of annotators must be opened. Raises RecipeError and ColumnError.
    """
    if demands.buckets:
        _check_columns(step)
    rules = (*demands.rules, *(bucket.as_rule() for bucket in demands.buckets))
    if rules:
        yield from check_columns(step, _conditions(step, rules, demands.edits)[0])


def finish(step: Step, demands: Demands, pairs: Sequence[Pair], drafts: Drafts) -> Phases:
    """Yield the phases in order, and return a Finished. drafts: the lists so far."""
    done, left = Finished(pairs, drafts), demands.rewritings
    if demands.rules:
        left -= 1
        yield from _apply_rules(step, demands, done, left)
    if demands.edits:
        runs = yield from _find_equal(step, done)
        if demands.drop_equal:
            common = Common(Shared((), column_types(step)), EqualRows(runs), sorted(demands.edits), last=True)
            yield from _rewritten(step, (Conditions(()), common), done, EQUAL, 0)
    if demands.buckets:
        yield from _assign(step, demands, done)
    return done


def _conditions(step: Step, rules: Sequence[Rule], edits: Mapping[str, EditConfig]) -> tuple[Conditions, Shared]:
    """Return the expressions of rules, after checking which tables and columns they read."""
    conditions, types = Conditions(rules, sorted(edits)), column_types(step)
    tables = {name for entry in step.inputs_of("annotate") for name in entry.manifest.details["tables"]}
    conditions.check(sorted(tables), types)
    return conditions, Shared(tuple(rules), types)


def _works(step: Step, conditions: Conditions, drafts: Drafts) -> list[Work]:
    """Return all partitions with the lists so far, in the order of `drafts.written`."""
    edits = drafts.edits()
    works = [
        work
        for entry in step.inputs_of("normalize")
        for work in works_of(entry, step.inputs_of("annotate"), conditions)
    ]
    found = list[Work]()
    for work, written in zip(works, drafts.written, strict=True):
        listed = edits.get((work.part.source, urls.name(work.output)))
        part = replace(
            work.part,
            leaving=_url(step, written.partition.path, written.partition.rows),
            edits=_url(step, listed.file.path, listed.file.rows) if listed is not None else None,
        )
        found.append(replace(work, part=part))
    return found


def _url(step: Step, path: str, rows: int) -> str | None:
    return urls.join(step.directory, path) if rows else None


def _apply_rules(step: Step, demands: Demands, done: Finished, left: int) -> Phases:
    conditions, shared = _conditions(step, demands.rules, demands.edits)
    cuts = yield from find_cuts(_works(step, conditions, done.drafts), shared, "rule-ranks")
    common = Common(replace(shared, cuts=cuts), None, sorted(demands.edits), last=not left)
    found = yield from _rewritten(step, (conditions, common), done, RULES, left)
    totals = rule_totals(found, [rule.name for rule in demands.rules])
    done.details[RULES] = msgspec.to_builtins(totals)
    for rule in demands.rules:
        decided = sum(counts[rule.name].decides for counts in totals.values())
        done.counters[f"select/{rule.action}_{rule.name}"] = decided


def _rewritten(step: Step, what: tuple[Conditions, Common], done: Finished, name: str, left: int) -> Phases:
    """Yield the phase that writes all lists again, and replace the drafts. left: how often they will be written again
    after that.
    """
    conditions, common = what
    edits, folder = done.drafts.edits(), folder_of(left)
    rewritings = list[Rewriting]()
    for number, (work, written) in enumerate(
        zip(_works(step, conditions, done.drafts), done.drafts.written, strict=True)
    ):
        source, file = work.part.source, urls.name(work.output)
        output = folder + edits_path(source, file) if (source, file) in edits else ""
        rewritings.append(Rewriting(replace(work, output=folder + done.pairs[number].output), written, output, number))
    tasks = tuple(
        Task(
            f"{one.start:05d}",
            "datakit.select.final.rewrite_lists:rewrite",
            {"partitions": msgspec.to_builtins(rewritings[one.start : one.stop])},
            sum(rewriting.work.bytes for rewriting in rewritings[one.start : one.stop]),
        )
        for one in neighbours([rewriting.work.bytes for rewriting in rewritings])
    )
    results = yield Phase(
        name.replace("_", "-"), tasks, msgspec.to_builtins(common), memory_bytes=MEMORY, memory_per_input_byte=1.0,
        hang_seconds=BATCH_HANG_SECONDS,
    )  # fmt: skip
    found = [msgspec.convert(one, Rewritten) for result in results for one in result.details["partitions"]]
    done.drafts = Drafts([one.written for one in found], [one.edits for one in found if one.edits is not None])
    return found


def _find_equal(step: Step, done: Finished) -> Phases:
    """Yield the phases that find texts that became equal; count them, and return the runs that list them."""
    parts = _compared(step, done.drafts)
    edited_bytes = sum(one.file.rows for one in done.drafts.lists) * equal_texts.ROW_BYTES
    size = max(edited_bytes, sum(part.rows for part in parts) * ID_BYTES)
    firsts = [(done.pairs[part.number].source, part.number) for part in parts if not part.index]
    common = Comparison(
        _power_of_two(size / TASK_BYTES),
        _power_of_two(len(parts)),
        firsts,
    )
    edited = [part for part in parts if part.edits is not None]
    tasks = tuple(
        Task(
            f"{one.start:05d}",
            "datakit.select.final.equal_texts:route",
            {"partitions": msgspec.to_builtins(edited[one.start : one.stop])},
            sum(part.rows for part in edited[one.start : one.stop]) * ID_BYTES,
        )
        for one in neighbours([part.rows * ID_BYTES for part in edited])
    )
    routed = yield Phase("edited", tasks, msgspec.to_builtins(common), memory_bytes=MEMORY, memory_per_input_byte=0.0)
    runs = yield from merged(
        step, equal_texts.EDITED_EXCHANGE, run_sizes(routed), common.ranges, readers=common.ranges, times=2
    )
    mine: list[list[Any]] = [[] for _ in range(common.ranges)]
    for part in parts:
        plain = msgspec.to_builtins(part)
        for number in part.ranges(common.ranges):
            mine[number].append(plain)
    task_bytes = sum(part.rows for part in parts) * ID_BYTES // common.ranges
    function = "datakit.select.final.equal_texts:find"
    tasks = tuple(
        Task(f"{number:05d}", function, {"range": number, "partitions": found}, task_bytes)
        for number, found in enumerate(mine)
    )
    shared = msgspec.to_builtins(replace(common, runs=runs))
    found = yield Phase("equal", tasks, shared, memory_bytes=MEMORY, memory_per_input_byte=0.0)
    counts = Counter[str](dict.fromkeys([name for name, _ in firsts], 0))
    for result in found:
        counts.update(result.details["equal"])
    done.details[EQUAL] = dict(counts)
    done.counters[f"select/{EQUAL}"] = counts.total()
    return (
        yield from merged(step, equal_texts.EQUAL_EXCHANGE, run_sizes(found), common.buckets, readers=common.buckets)
    )


def _compared(step: Step, drafts: Drafts) -> list[Compared]:
    """Return all partitions with the lists so far."""
    works, found = _works(step, Conditions(()), drafts), list[Compared]()
    counts = Counter(work.part.source for work in works)
    seen = Counter[str]()
    for number, work in enumerate(works):
        part = work.part
        found.append(
            Compared(number, seen[part.source], counts[part.source], part.dataset, work.rows, part.leaving, part.edits)
        )
        seen[part.source] += 1
    return found


def _power_of_two(least: float) -> int:
    return 1 << max(0, ceil(least) - 1).bit_length()


def _assign(step: Step, demands: Demands, done: Finished) -> Phases:
    """Yield the phases that assign documents to buckets."""
    rules = tuple(bucket.as_rule() for bucket in demands.buckets)
    conditions, shared = _conditions(step, rules, demands.edits)
    works = _works(step, conditions, done.drafts)
    divided = [work for work in works if any(not rule.sources or work.part.source in rule.sources for rule in rules)]
    cuts = yield from find_cuts(divided, shared, "bucket-ranks")
    phase = phase_of("buckets", "datakit.select.final.assign_buckets:assign", divided, replace(shared, cuts=cuts))
    common = {"conditions": phase.shared, "edits": sorted(demands.edits)}
    results = yield replace(phase, shared=common)
    assigned = [msgspec.convert(one, Assigned) for result in results for one in result.details["partitions"]]
    counts = dict[str, dict[str, BucketCounts]]()
    for one in assigned:
        mine = counts.setdefault(one.source, {})
        for name, here in one.counts.items():
            mine[name] = mine.get(name, BucketCounts()) + here
    done.details[BUCKETS] = msgspec.to_builtins(counts)
    names = dict.fromkeys(name for mine in counts.values() for name in mine)
    for name in names:
        total = sum(mine[name].documents for mine in counts.values() if name in mine)
        done.counters[f"select/bucket_{name}"] = total
    done.files = [file for one in assigned for file in one.files]


def _check_columns(step: Step) -> None:
    """Raise ColumnError if the documents of a source already have the column that consolidate will add."""
    for entry in step.inputs_of("normalize"):
        if BUCKET_COLUMN in [column.name for column in entry.manifest.schema]:
            raise ColumnError(
                f"source {entry.source!r} has a column {BUCKET_COLUMN!r}, the name of the column for the buckets of "
                "[[select.buckets]]; rename it in the files or with a transform"
            )
