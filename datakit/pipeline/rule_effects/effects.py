"""Reads from a finished `rules` step what each rule did to each source, and picks some of the documents that it
removes.

The number of tokens that a rule removes is an estimate, because removed documents are never encoded: the bytes of their
texts, times the tokens per byte of the source's documents in the token cache (of all sources, if the source has none
there). What is retained is counted exactly.

The documents of a sample are those with the smallest ids. An id is a hash of the text, so this is a random sample, and
the same one for any number of partitions and workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from datakit.errors import UsageError, suggestion
from datakit.pipeline.fate.behind import Finished, steps_behind
from datakit.storage.manifest import Manifest, totals_of
from datakit.storage.parquet import iterate_shard
from datakit.storage.selection.leaving_rows import RULE

TEXT = "text"


@dataclass(frozen=True)
class RuleEffect:
    """The effect of a rule on a source. The counts are described in docs/rules.md. tokens: about how many tokens it
    removes; None without a token cache.
    """

    source: str
    rule: str
    action: str
    applies: int
    decides: int
    missing: int
    text_bytes: int
    tokens: int | None


@dataclass(frozen=True)
class Retained:
    """The documents of a source in the token cache, the bytes of their texts after editing, and their tokens."""

    documents: int
    text_bytes: int | None
    tokens: int | None


@dataclass(frozen=True)
class Sample:
    """A document that a rule removes. reasons: all rules that would remove it. text: its text, if it was asked for."""

    id: str
    source: str
    rule: str
    reasons: tuple[str, ...]
    text: str | None = None


@dataclass(frozen=True)
class Effects:
    """The effects of all rules. step: the directory of the step; "" for a preview. documents, leaving: the numbers of
    all documents and of those that leave, by source. retained: by source; empty for a preview or without a token cache.
    """

    dataset: str
    step: str
    documents: Mapping[str, int]
    leaving: Mapping[str, int]
    rules: tuple[RuleEffect, ...]
    samples: tuple[Sample, ...] = ()
    retained: Mapping[str, Retained] = field(default_factory=dict)


@dataclass(frozen=True)
class SampleOptions:
    """The choice of samples. count: of each rule, at most this many. rule: only of this rule; "" for all. show_text:
    read their texts as well.
    """

    count: int = 0
    rule: str = ""
    show_text: bool = False


def effects(target: str, options: SampleOptions) -> Effects:
    """Return what the rules did in a dataset's current run, or in the run of a step. Raises UsageError if it has no
    rules, and what `steps_behind` raises.
    """
    behind = steps_behind(target)
    step = behind.of("rules")
    if step is None:
        raise UsageError(f"{target} was made without rules; add [[rules]] tables to its recipe (docs/rules.md)")
    cache = behind.of("tokenize")
    found = effects_of(step, behind.normalized, cache.manifest if cache else None, options)
    return with_retained(found, cache.manifest if cache else None)


def with_retained(found: Effects, cache: Manifest | None) -> Effects:
    """Add what is retained of each source. cache: the token cache made with these rules, if there is one."""
    if cache is None:
        return found
    totals = {source: totals_of(cache.partitions_of(source)) for source in found.documents}
    kept = {source: Retained(one.rows, one.text_bytes, one.tokens) for source, one in totals.items()}
    return replace(found, retained=kept)


def effects_of(
    step: Finished, normalized: Mapping[str, Finished], cache: Manifest | None, options: SampleOptions
) -> Effects:
    """Return what the rules did in a `rules` step, without what is retained. normalized: the steps with the documents,
    by source. cache: a token cache of the dataset, if there is one; it need not be made with these rules.
    """
    sources, rules = step.manifest.details["sources"], step.manifest.parameters["rules"]
    names = [rule["name"] for rule in rules]
    if options.rule and options.rule not in names:
        raise UsageError(f"no rule {options.rule!r}; {suggestion(options.rule, names)}")
    found = [
        _effect(source, rule, entry["rules"][rule["name"]], cache)
        for rule in rules
        for source, entry in sources.items()
    ]
    samples = [one for name in names if options.rule in ("", name) for one in _samples(step, name, normalized, options)]
    return Effects(
        step.manifest.dataset,
        step.directory,
        {source: entry["records_in"] for source, entry in sources.items()},
        {source: entry["leaving"] for source, entry in sources.items()},
        tuple(found),
        tuple(samples),
    )


def _effect(source: str, rule: Mapping[str, Any], counts: Mapping[str, int], cache: Manifest | None) -> RuleEffect:
    return RuleEffect(
        source, rule["name"], rule["action"], counts["applies"], counts["decides"], counts["missing"],
        counts["text_bytes"], _tokens(source, counts["text_bytes"], cache),
    )  # fmt: skip


def _tokens(source: str, text_bytes: int, cache: Manifest | None) -> int | None:
    """Return about how many tokens a text of `source` has."""
    for partitions in () if cache is None else (cache.by_source.get(source, []), cache.partitions):
        known = totals_of(partitions)
        if known.tokens and known.text_bytes:
            return text_bytes * known.tokens // known.text_bytes
    return None


def _samples(step: Finished, rule: str, normalized: Mapping[str, Finished], options: SampleOptions) -> Sequence[Sample]:
    """Return some of the documents that a rule removes, in the order of their ids."""
    found: list[Sample] = []
    for source in step.manifest.by_source if options.count else ():
        mine: list[Sample] = []
        for partition in step.manifest.partitions_of(source):  # in the order of ids
            if len(mine) < options.count and partition.rows:
                mine += _removed(step.url(partition.path), rule, source, options.count - len(mine))
        found = sorted([*found, *mine], key=lambda one: (one.id, one.source))[: options.count]
    if options.show_text:
        found = [_with_text(one, normalized[one.source]) for one in found]
    return found


def _removed(url: str, rule: str, source: str, most: int) -> list[Sample]:
    found: list[Sample] = []
    for table in iterate_shard(url, ["id", "reason", "reasons"]):
        for row in table.to_pylist():
            if row["reason"] == RULE + rule:
                others = tuple(reason.removeprefix(RULE) for reason in row["reasons"])
                found.append(Sample(row["id"], source, rule, others))
                if len(found) == most:
                    return found
    return found


def _with_text(sample: Sample, documents: Finished) -> Sample:
    row = documents.row(sample.source, sample.id, [TEXT])
    assert row is not None, "the list was compared with the documents when it was written"
    return Sample(sample.id, sample.source, sample.rule, sample.reasons, row[2][TEXT])
