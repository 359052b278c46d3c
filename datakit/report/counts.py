"""Collects the counts of a report: the documents and tokens of each source, and the distributions of the lengths of
documents and of the sizes of components.

All counts come from manifests. Nothing is estimated, and no data file is read. If there are more than MOST_SOURCES
sources, the smallest ones are added up in one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from datakit.pipeline.root_layout import stage_order
from datakit.pipeline.run_summary import DROPPED
from datakit.report.subject import Subject
from datakit.storage.manifest import Manifest, totals_of
from datakit.storage.selection.leaving_rows import FINAL, RULE

MOST_SOURCES = 200
REASONS = {
    "exact": "exact duplicates across sources",
    "fuzzy": "fuzzy duplicates",
    "empty": "empty after editing",
    "unannotated": "not annotated",
    "equal_after_editing": "equal after editing",
}


@dataclass(frozen=True)
class SourceCounts:
    """The counts of a source. records: read by normalize. left_out: the records that normalize left out, by reason.
    documents: those that normalize wrote. removed: the documents that left after that, by reason. A count is None if no
    step of the report states it. sources: the number of sources that these counts cover.
    """

    name: str
    records: int | None = None
    added: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    documents: int | None = None
    removed: Counter[str] = field(default_factory=Counter)
    kept: int | None = None
    text_bytes: int | None = None
    tokens: int | None = None
    sources: int = 1

    @property
    def retained(self) -> float | None:
        """The number of documents kept, divided by the number of records and added documents."""
        came = (self.records or 0) + self.added
        return self.kept / came if self.kept is not None and came else None


def source_counts(subject: Subject) -> list[SourceCounts]:
    """Return the counts of each source, in the order of the recipe. If a training run reads several caches, the name of
    a source is preceded by that of its dataset.
    """
    steps = [step.manifest for step in subject.steps if step.manifest is not None]
    ends = [manifest for manifest in steps if manifest.stage == "tokenize"]
    if len(ends) < 2:
        return _limited(_of_steps(steps))
    known = {manifest.identity: manifest for manifest in steps}
    every = (
        replace(source, name=f"{end.dataset}/{source.name}")
        for end in ends
        for source in _of_steps(_behind(end, known))
    )
    return _limited(list(every))


def _behind(end: Manifest, known: Mapping[str, Manifest]) -> list[Manifest]:
    """Return a step and all known steps from which it was made, upstream steps first."""
    above = (known[entry.identity] for entry in end.inputs if entry.identity in known)
    listed = [step for manifest in above for step in _behind(manifest, known)]
    return list({step.identity: step for step in [*listed, end]}.values())


def _of_steps(steps: Sequence[Manifest]) -> list[SourceCounts]:
    found: dict[str, SourceCounts] = {}
    beside = {"select", "tokenize"} <= {manifest.stage for manifest in steps}  # tokenize did not read consolidate
    for manifest in sorted(steps, key=lambda manifest: stage_order(manifest.stage)):
        match manifest.stage:
            case "normalize":
                found[manifest.dataset] = _normalized(manifest)
            case "select":
                for name, own in manifest.details["sources"].items():
                    found[name] = _selected(found.get(name, SourceCounts(name)), own)
            case "consolidate" if not beside:
                for name, own in manifest.details["sources"].items():
                    found[name] = _consolidated(found.get(name, SourceCounts(name)), own)
            case "tokenize":
                shards = manifest.by_source
                for name in [*found, *(name for name in shards if name not in found)]:
                    totals = totals_of(shards.get(name, []))  # a source of which nothing is left has no shard
                    before = found.get(name, SourceCounts(name))
                    size = before.text_bytes if totals.text_bytes is None else totals.text_bytes
                    found[name] = replace(before, kept=totals.rows, tokens=totals.tokens, text_bytes=size)
    return list(found.values())


def _normalized(manifest: Manifest) -> SourceCounts:
    counters = manifest.counters
    left_out = Counter({why: counters[key] for key, why in DROPPED["normalize"].items() if counters.get(key)})
    return SourceCounts(
        manifest.dataset, counters["normalize/records_in"], counters.get("normalize/transform_added", 0), left_out,
        manifest.totals.rows, kept=manifest.totals.rows, text_bytes=manifest.totals.text_bytes,
    )  # fmt: skip


def _selected(before: SourceCounts, own: Mapping[str, Any]) -> SourceCounts:
    """Return the counts after select. The size of the text that stays is unknown, because select reads no text."""
    removed = Counter({_reason(why): count for why, count in own["combinations"].items() if count})
    size = before.text_bytes if not removed else None
    return replace(before, documents=own["records_in"], removed=removed, kept=own["records_out"], text_bytes=size)


def _consolidated(before: SourceCounts, own: Mapping[str, Any]) -> SourceCounts:
    removed = Counter({_reason(why): count for why, count in own["dropped"].items() if count})
    return replace(
        before, documents=own["records_in"], removed=removed, kept=own["records_out"], text_bytes=own["text_bytes"]
    )


def _reason(why: str) -> str:
    if why.startswith(FINAL):
        return f"by final rule {why.replace(FINAL, '')}"
    return f"by rule {why.removeprefix(RULE)}" if why.startswith(RULE) else REASONS.get(why, why)


def _limited(sources: list[SourceCounts]) -> list[SourceCounts]:
    if len(sources) <= MOST_SOURCES:
        return sources
    largest = sorted(sources, key=size, reverse=True)
    return [*largest[: MOST_SOURCES - 1], merged(largest[MOST_SOURCES - 1 :])]


def size(source: SourceCounts) -> tuple[int, int]:
    """Return a key that sorts sources by tokens, then by documents."""
    return source.tokens or 0, source.kept or 0


def merged(sources: Sequence[SourceCounts]) -> SourceCounts:
    """Return the sums over several sources as the counts of one source."""
    return SourceCounts(
        name=f"{(number := sum(source.sources for source in sources)):,} other sources",
        records=_sum([source.records for source in sources]),
        added=sum(source.added for source in sources),
        left_out=sum((source.left_out for source in sources), Counter()),
        documents=_sum([source.documents for source in sources]),
        removed=sum((source.removed for source in sources), Counter()),
        kept=_sum([source.kept for source in sources]),
        text_bytes=_sum([source.text_bytes for source in sources]),
        tokens=_sum([source.tokens for source in sources]),
        sources=number,
    )


def total(sources: Sequence[SourceCounts]) -> SourceCounts:
    """Return the sums over all sources, named `all`."""
    return replace(merged(sources), name="all")


def _sum(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(count for count in counts if count is not None)


def document_lengths(subject: Subject) -> list[tuple[int, int, int]]:
    """Return (least tokens, most tokens, documents) for each power of two, over all token caches of the report."""
    counts = Counter[int]()
    for step in subject.found("tokenize"):
        assert step.manifest is not None
        for above, documents in step.manifest.details.get("lengths", {}).items():
            counts[int(above)] += documents
    return [(above // 2, above - 1, counts[above]) for above in _powers(counts)]


def component_sizes(subject: Subject) -> list[tuple[int, int, int]]:
    """Return (least documents, most documents, components) for each power of two, over all dedup steps of the report.
    The manifests name the components "clusters".
    """
    counts = Counter[int]()
    for step in subject.found("dedup"):
        assert step.manifest is not None
        for least, components in step.manifest.details.get("clusters", {}).get("histogram", ()):
            counts[least] += components
    return [(least, 2 * least - 1, counts[least]) for least in _powers(counts)]


def _powers(counts: Counter[int]) -> list[int]:
    """Return all powers of two from the smallest to the largest key."""
    if not counts:
        return []
    first, last = min(counts).bit_length() - 1, max(counts).bit_length() - 1
    return [1 << place for place in range(first, last + 1)]
