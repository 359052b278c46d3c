"""Evaluates the final rules and the document buckets of a select step again on the documents that stay.

A document that stays must not be one that a rule removes. A document in a bucket must be one to which the bucket
applies, and no earlier bucket. Rules and buckets with `lowest` or `highest` refer to a share of all documents; only
their `where` and `by` are evaluated. Documents that have left are not evaluated, because their edits are not listed.

Cost: reading the attributes that the expressions name. Memory: for each thread, a row group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from datakit.conditions.config import DROP, KEEP, Rule
from datakit.conditions.expressions import Answers, Conditions
from datakit.conditions.phase_data import Work
from datakit.conditions.records import RowGroup, read_records
from datakit.conditions.works import column_types, works_of
from datakit.engine.task import Step
from datakit.errors import CorruptError
from datakit.select.stage import Config
from datakit.storage.fingerprint import config_of
from datakit.storage.parquet import read_shard
from datakit.storage.selection.leaving_rows import Selected, selected
from datakit.validate.between.edits import step_of
from datakit.validate.finding import Result
from datakit.validate.subject import Subject, in_parallel


@dataclass(frozen=True)
class _Evaluated:
    """The rules and buckets of a step. types: those of the documents' columns."""

    rules: tuple[Rule, ...]
    buckets: tuple[Rule, ...]
    edits: list[str]
    types: dict[str, str]


def check(step: Subject, result: Result) -> None:
    """Evaluate the rules and buckets for all documents that stay."""
    config = config_of(step.manifest.parameters, Config)
    if not config.rules and not config.buckets:
        return result.skip("the step has no final rules and no buckets")
    if missing := next(filter(None, map(step.missing, ("normalize", "rules", "dedup", "annotate"))), ""):
        return result.skip(missing)
    made, buckets = step_of(step), tuple(bucket.as_rule() for bucket in config.buckets)
    about = _Evaluated(config.rules, buckets, sorted(step.manifest.parameters.get("edits", {})), column_types(made))
    with result.reading(step.manifest_url):
        for rows in in_parallel(partial(_compare, step, result, about), _works(made, step, about)):
            result.count("document", rows)
    return None


def _works(made: Step, step: Subject, about: _Evaluated) -> list[tuple[Work, Selected]]:
    """Return all partitions with their tables and lists."""
    conditions, found = Conditions((*about.rules, *about.buckets), about.edits), list[tuple[Work, Selected]]()
    for entry in made.inputs_of("normalize"):
        partitions = entry.manifest.partitions_of(str(entry.source))
        selections = selected(step.directory, step.manifest, str(entry.source), partitions)
        works = works_of(entry, made.inputs_of("annotate"), conditions)
        for work, selection in zip(works, selections, strict=True):
            part = replace(work.part, leaving=selection.leaving, edits=selection.edits)
            found.append((replace(work, part=part), selection))
    return found


def _compare(step: Subject, result: Result, about: _Evaluated, pair: tuple[Work, Selected]) -> int:
    """Compare one partition; return the number of documents in it that stay."""
    work, selection = pair
    lists = [url for members in selection.buckets.values() for url in members.lists]
    given = [url for url in (work.part.leaving, work.part.edits, *lists) if url is not None]
    if not step.sound(work.part.dataset, *work.part.tables.values(), *given):
        result.skip("damaged files are not compared")
        return 0
    place, rows = step.url(work.output), 0
    conditions = Conditions((*about.rules, *about.buckets), about.edits)
    with result.reading(place):
        inside = _inside(selection)
        for group in read_records(work.part, conditions.wanted, about.types):
            answers = conditions.answers(group.records, work.part.dataset)
            count, source = len(about.rules), work.part.source
            left = _removed(about.rules, answers[:count], source)
            if left.any():
                result.find(place, f"keeps {_name(group, left)}, which a final rule removes")
            wrong = _misplaced(about.buckets, answers[count:], source, [np.isin(group.rows, one) for one in inside])
            if wrong.any():
                result.find(place, f"has {_name(group, wrong)} in a bucket that does not apply to it")
            rows += len(group.rows)
        if rows != selection.rows:
            raise CorruptError(f"{place}: {rows} documents stay, not {selection.rows}")
    return rows


def _inside(selection: Selected) -> list[np.ndarray]:
    """Return the rows that each bucket's list names, in order."""
    named = list(selection.buckets.values())[:-1]
    return [
        read_shard(one.lists[0], ["row"])["row"].to_numpy().astype(np.int64) if one.lists else np.empty(0, np.int64)
        for one in named
    ]


def _name(group: RowGroup, chosen: np.ndarray) -> str:
    return f"document {group.ids[int(np.argmax(chosen))].as_py()}"


def _may_apply(rule: Rule, answer: Answers, source: str) -> np.ndarray:
    """Return the documents to which a rule applies, if its share contains them: bool [N]."""
    mine = not rule.sources or source in rule.sources
    return (answer.where | (answer.missing & rule.missing)) & mine


def _removed(rules: Sequence[Rule], answers: Sequence[Answers], source: str) -> np.ndarray:
    """Return the documents that a rule removes for certain: bool [N]."""
    size = len(answers[0].where) if answers else 0
    removed, protected = np.zeros(size, bool), np.zeros(size, bool)
    for rule, answer in zip(rules, answers, strict=True):
        applies = _may_apply(rule, answer, source)
        if rule.action == KEEP:
            protected |= applies
        elif rule.action == DROP and not rule.ranks:
            removed |= applies & ~protected
    return removed


def _misplaced(
    buckets: Sequence[Rule], answers: Sequence[Answers], source: str, inside: Sequence[np.ndarray]
) -> np.ndarray:
    """Return the documents that are in a bucket which does not apply, or although an earlier one does: bool [N].
    inside: the documents in each bucket of the source, in order; all others are in the rest.
    """
    mine = [
        (rule, answer)
        for rule, answer in zip(buckets, answers, strict=True)
        if not rule.sources or source in rule.sources
    ]
    if not mine:
        return np.zeros(0, bool)
    wrong = np.zeros(len(inside[0]), bool)
    earlier = np.zeros(len(inside[0]), bool)  # those to which a bucket so far applies for certain
    for (rule, answer), members in zip(mine, inside, strict=True):
        applies = _may_apply(rule, answer, source)
        wrong |= members & (~applies | earlier)
        earlier |= applies & (not rule.ranks)
    return wrong | (~np.logical_or.reduce(inside) & earlier)
