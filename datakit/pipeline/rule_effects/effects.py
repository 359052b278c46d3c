"""Reads from finished steps what each rule did to each source, and picks some of the documents that it removes. The
rules of [[rules]] are in the `rules` step; those of [[select.rules]], here called final, and the document buckets are
in the `select` step.

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
from datakit.select.final.plan import RULES
from datakit.storage.manifest import Manifest, totals_of
from datakit.storage.parquet import iterate_shard
from datakit.storage.selection.buckets import FOLDER as BUCKETS
from datakit.storage.selection.buckets import buckets_of
from datakit.storage.selection.leaving_rows import FINAL, RULE

TEXT = "text"


@dataclass(frozen=True)
class RuleEffect:
    """The effect of a rule on a source. The counts are described in docs/rules.md. tokens: about how many tokens it
    removes, if a token cache of the dataset is known; otherwise None. final: True for a rule of [[select.rules]].
    """

    source: str
    rule: str
    action: str
    applies: int
    decides: int
    missing: int
    text_bytes: int
    tokens: int | None
    final: bool = False


@dataclass(frozen=True)
class BucketEffect:
    """The documents that a document bucket gets from a source. applies, missing: as for rules."""

    source: str
    bucket: str
    documents: int
    applies: int
    missing: int


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
    """The effects of all rules. step: the directory of the last step that was read; "" for a preview. documents,
    leaving: the numbers of all documents and of those that leave because of rules, by source. retained: by source;
    empty for a preview or without a token cache.
    """

    dataset: str
    step: str
    documents: Mapping[str, int]
    leaving: Mapping[str, int]
    rules: tuple[RuleEffect, ...]
    samples: tuple[Sample, ...] = ()
    retained: Mapping[str, Retained] = field(default_factory=dict)
    buckets: tuple[BucketEffect, ...] = ()


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
    step, select, cache = behind.of("rules"), behind.of("select"), behind.of("tokenize")
    after = select if select is not None and has_final(select.manifest) else None
    if step is None and after is None:
        raise UsageError(f"{target} was made without rules; add [[rules]] tables to its recipe (docs/rules.md)")
    names = [name for one in (step, after) if one is not None for name in _names(one)]
    if options.rule and options.rule not in names:
        raise UsageError(f"no rule {options.rule!r}; {suggestion(options.rule, names)}")
    return effects_of_all(step, after, behind.normalized, cache.manifest if cache else None, options)


def has_final(select: Manifest) -> bool:
    """Return True if a select step applied final rules or assigned documents to buckets."""
    return bool({RULES, BUCKETS} & set(select.details))


def effects_of_all(
    step: Finished | None,
    select: Finished | None,
    normalized: Mapping[str, Finished],
    cache: Manifest | None,
    options: SampleOptions,
) -> Effects:
    """Return what the rules of a `rules` step and of a select step did, and what is retained. select: None if it has
    neither final rules nor buckets. normalized, cache: as for `effects_of`.
    """
    last = step or select
    assert last is not None
    found = Effects(last.manifest.dataset, "", {}, {}, ())
    if step is not None:
        found = effects_of(step, normalized, cache, options)
    if select is not None:
        found = _with_final(found, select, normalized, cache, options)
    return _with_retained(found, cache)


def _with_retained(found: Effects, cache: Manifest | None) -> Effects:
    """Add what is retained of each source. cache: the token cache made with these rules, if there is one."""
    if cache is None:
        return found
    totals = {source: totals_of(cache.partitions_of(source)) for source in found.documents}
    kept = {source: Retained(one.rows, one.text_bytes, one.tokens) for source, one in totals.items()}
    return replace(found, retained=kept)


def _with_final(
    found: Effects,
    select: Finished,
    normalized: Mapping[str, Finished],
    cache: Manifest | None,
    options: SampleOptions,
) -> Effects:
    """Add what a select step did after texts were edited."""
    sources, details = select.manifest.details["sources"], select.manifest.details
    rules = select.manifest.parameters.get(RULES, [])
    effects = [
        replace(_effect(source, rule, details[RULES][source][rule["name"]], cache), final=True)
        for rule in rules
        for source in sources
    ]
    left = {
        source: sum(count for why, count in entry["combinations"].items() if why.startswith(FINAL))
        for source, entry in sources.items()
    }
    samples = [
        one
        for rule in rules
        if options.rule in ("", rule["name"])
        for one in _samples(select, FINAL + rule["name"], normalized, options)
    ]
    buckets = [
        BucketEffect(source, name, counts["documents"], counts["applies"], counts["missing"])
        for source, mine in details.get(BUCKETS, {}).items()
        for name, counts in sorted(mine.items(), key=lambda pair: buckets_of(select.manifest, source).index(pair[0]))
    ]
    return replace(
        found,
        step=select.directory,
        documents=found.documents or {source: entry["records_in"] for source, entry in sources.items()},
        leaving={source: found.leaving.get(source, 0) + count for source, count in left.items()},
        rules=(*found.rules, *effects),
        samples=(*found.samples, *samples),
        buckets=tuple(buckets),
    )


def _names(step: Finished) -> list[str]:
    return [rule["name"] for rule in step.manifest.parameters.get(RULES, [])]


def effects_of(
    step: Finished, normalized: Mapping[str, Finished], cache: Manifest | None, options: SampleOptions
) -> Effects:
    """Return what the rules did in a `rules` step, without what is retained. normalized: the steps with the documents,
    by source. cache: a token cache of the dataset, if there is one; it need not be made with these rules.
    """
    sources, rules = step.manifest.details["sources"], step.manifest.parameters["rules"]
    names = [rule["name"] for rule in rules]
    found = [
        _effect(source, rule, entry["rules"][rule["name"]], cache)
        for rule in rules
        for source, entry in sources.items()
    ]
    samples = [
        one for name in names if options.rule in ("", name) for one in _samples(step, RULE + name, normalized, options)
    ]
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


def _samples(
    step: Finished, reason: str, normalized: Mapping[str, Finished], options: SampleOptions
) -> Sequence[Sample]:
    """Return some of the documents that leave for a reason, in the order of their ids."""
    found: list[Sample] = []
    for source in step.manifest.by_source if options.count else ():
        mine: list[Sample] = []
        for partition in step.manifest.partitions_of(source):  # in the order of ids
            if len(mine) < options.count and partition.rows:
                mine += _removed(step.url(partition.path), reason, source, options.count - len(mine))
        found = sorted([*found, *mine], key=lambda one: (one.id, one.source))[: options.count]
    if options.show_text:
        found = [_with_text(one, normalized[one.source]) for one in found]
    return found


def _removed(url: str, reason: str, source: str, most: int) -> list[Sample]:
    """Return the first documents that a rule removes. A final rule need not be the one that decides."""
    found, prefix = list[Sample](), FINAL if reason.startswith(FINAL) else RULE
    columns = ["id", "reasons"] if prefix == FINAL else ["id", "reason", "reasons"]
    for table in iterate_shard(url, columns):
        for row in table.to_pylist():
            if reason in row["reasons"] if prefix == FINAL else row["reason"] == reason:
                others = tuple(one.removeprefix(prefix) for one in row["reasons"])
                found.append(Sample(row["id"], source, reason.removeprefix(prefix), others))
                if len(found) == most:
                    return found
    return found


def _with_text(sample: Sample, documents: Finished) -> Sample:
    row = documents.row(sample.source, sample.id, [TEXT])
    assert row is not None, "the list was compared with the documents when it was written"
    return Sample(sample.id, sample.source, sample.rule, sample.reasons, row[2][TEXT])
