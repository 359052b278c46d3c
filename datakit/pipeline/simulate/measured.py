"""Measures the corpus of a real run from the manifests and ledgers of its steps, so that it can be simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from datakit.dedup.phase_data import ForestFiles, Labelled, Written
from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.engine.task import TaskResult
from datakit.errors import UsageError
from datakit.normalize.phase_data import RouteDetails
from datakit.pipeline.simulate.corpus import Corpus, SourceText
from datakit.storage.manifest import Manifest, read_manifest


def measure(directories: Sequence[str]) -> Corpus:
    """Return the corpus that a finished run has read. directories: the directories of all its steps. Raises UsageError
    if there is no normalize step.
    """
    manifests = {directory: read_manifest(directory) for directory in directories}
    stages = {stage: [(place, one) for place, one in manifests.items() if one.stage == stage] for stage in STAGES}
    if not stages["normalize"]:
        raise UsageError("a corpus can be measured only from a run with a finished normalize step")
    sources = {one.dataset: _source(place, one) for place, one in stages["normalize"]}
    records, documents, text, values = (sum(getattr(source, name) for source in sources.values())
                                        for name in ("records", "documents", "text_bytes", "value_bytes"))  # fmt: skip
    raw = [part.bytes for _, one in stages["download"] for part in one.partitions]
    normalized = sum(one.totals.bytes for _, one in stages["normalize"])
    known = {
        "file_bytes": max(1, sum(raw) // max(1, len(raw))),
        "expansion": values / max(1, sum(raw)),
        "document_bytes": max(1, text // max(1, documents)),
        "other_bytes": max(0, values - text) // max(1, records) if records == documents else 60,
        "duplicates": 1 - documents / max(1, records),
        "normalized": normalized / max(1, text),
        "origin_bytes": _size(stages["normalize"], "origins/part-") // max(1, records),
    }
    if stages["signatures"]:
        total = sum(manifest.totals.bytes for _, manifest in stages["signatures"])
        skipped = Counter[str]()
        for _, manifest in stages["signatures"]:
            skipped.update(manifest.counters)
        known |= {
            "signature_bytes": total // max(1, documents),
            "signature_sizes": {
                one.dataset: tuple(part.bytes for part in one.partitions) for _, one in stages["signatures"]
            },
            "skipped": (skipped["signatures/too_short"] + skipped["signatures/saturated"]) / one_or(documents),
        }
    for place, one in stages["dedup"]:
        known |= _dedup(place, one, documents)
    for _, one in stages["tokenize"]:
        tokens = one.counters["tokenize/tokens"] - one.counters["tokenize/documents"]
        known["token_bytes"] = one.counters["tokenize/text_bytes"] / one_or(tokens)
    return Corpus(sources=sources, **known)


STAGES = ("download", "normalize", "signatures", "dedup", "consolidate", "tokenize")


def one_or(count: int) -> int:
    """Return the count, but at least 1, so that it can be a divisor."""
    return max(1, count)


def _source(place: str, manifest: Manifest) -> SourceText:
    values = sum(msgspec.convert(one.details, RouteDetails).value_bytes for one in results(place, "route"))
    records = manifest.totals.rows + manifest.counters["normalize/duplicates"]
    read = [one.records for one in results(place, "sort") if one.details]  # the list of files has none
    partitions = tuple((count, part.rows, part.text_bytes or 0)
                       for count, part in zip(read, manifest.partitions, strict=True))  # fmt: skip
    return SourceText(records, manifest.totals.rows, manifest.totals.text_bytes or 0, values, partitions)


def _dedup(place: str, manifest: Manifest, documents: int) -> dict[str, Any]:
    counters, report = manifest.counters, list(manifest.details["sources"].values())
    later = sum(entry["documents"] for entry in report[1:])
    labelled = [msgspec.convert(one.details, Labelled) for one in results(place, "labels")]
    edges = sum(msgspec.convert(one.details, ForestFiles).edges for one in results(place, "buckets"))
    clustered = sum(one.rows for one in labelled)
    written = [msgspec.convert(one.details, Written) for one in results(place, "attributes")]
    removed = [pair for one in written for pair in one.removed]
    return {
        "exact": counters["dedup/exact_removed"] / one_or(later),
        "fuzzy": counters["dedup/fuzzy_removed"] / one_or(documents),
        "clustered": clustered / one_or(documents),
        "clustered_in": {key: one.records for key, one in results_of(place, "shingles").items()},
        "removed_in": {
            part.path.removeprefix("data/"): pair for part, pair in zip(manifest.partitions, removed, strict=True)
        },
        "cluster_size": clustered / one_or(sum(one.components for one in labelled)) if clustered else 2.0,
        "edges": edges / one_or(clustered),
        "removal_bytes": manifest.totals.bytes // one_or(manifest.totals.rows),
    }


def results(place: str, phase: str) -> Sequence[TaskResult]:
    """Return the result of each task of a phase, in the order of the tasks' keys."""
    return list(results_of(place, phase).values())


def results_of(place: str, phase: str) -> dict[str, TaskResult]:
    """Return the result of each task of a phase by the task's key, in the order of the keys."""
    found: dict[str, TaskResult] = {}
    for line in read_ledger(place):
        if isinstance(line, AttemptLine) and line.phase == phase and line.result is not None:
            found.setdefault(line.key, line.result)
    return dict(sorted(found.items()))


def _size(steps: Sequence[tuple[str, Manifest]], prefix: str) -> int:
    return sum(file.bytes for _, one in steps for file in one.files if file.path.startswith(prefix))
