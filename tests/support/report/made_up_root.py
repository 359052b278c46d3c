"""Writes a finished dataset that consists of manifests and ledgers, without any data files, for reports on sizes that a
test could not run.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from datakit.engine.executor import Cause
from datakit.engine.ledger.ledger import AttemptLine, LedgerWriter, PhaseLine
from datakit.engine.task import TaskResult
from datakit.storage.fingerprint import fingerprint
from datakit.storage.latest import Current, SourceRecords, current_cache, record_latest
from datakit.storage.manifest import (
    Column,
    InputReference,
    Manifest,
    Partition,
    Quarantine,
    data_path,
    manifest_url,
    totals_of,
    write_manifest,
)

DRIVER = "20260102T030405678Z-1234-0a1b2c"
SCHEMA = [Column(name, "string") for name in ("id", "text", "source", "source_id")]
GIB = 1 << 30
ROWS = 40  # documents of a source in each partition


def write_root(root: Path, sources: list[str], partitions: int, dataset: str = "made") -> Path:
    """Write a dataset with `partitions` partitions of each source; return its directory."""
    home = root / dataset
    normalized = [_source(root, number, name, partitions) for number, name in enumerate(sources)]
    removed = _dedup(home, normalized, partitions)
    kept = _consolidate(home, normalized, removed)
    cache = _tokenize(home, kept)
    current = Current(Path(cache[0]).name, cache[1].identity)
    record_latest(str(home), current, current, SourceRecords(dict.fromkeys(sources[:2], "CC-BY-4.0")))
    return home


def write_training_run(directory: Path, datasets: list[Path]) -> Path:
    """Write a finished training run that read the caches of these datasets, and its metrics; return its directory."""
    caches = [found for dataset in datasets if (found := current_cache(str(dataset)))]
    place = _step(directory, "train", directory.name, [], caches, {"steps": 2}, {})[0]
    rows = [{"global_step": number, "train/cross_entropy_loss": 5.0 - number} for number in (1, 2)]
    (Path(place) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Path(place)


Step = tuple[str, Manifest]


def _source(root: Path, number: int, name: str, partitions: int) -> Step:
    home = root / "sources" / f"s{number:03d}"
    files = [Partition(f"part-{part:05d}.jsonl", name, 0, 5_000_000, "0" * 32) for part in range(partitions)]
    raw = _step(home, "download", name, files, [], {"listing": f"{number:032x}"}, {"download/files": partitions})
    parts = _partitions(name, partitions, ROWS)
    came = ROWS * partitions + 7
    counters = {"normalize/records_in": came, "normalize/blank": 5, "normalize/duplicates": 2,
                "normalize/records_out": came - 7, "normalize/transform_added": 0}  # fmt: skip
    return _step(home, "normalize", name, parts, [raw], {"text": "text", "sample": 1.0}, counters)


def _dedup(home: Path, normalized: list[Step], partitions: int) -> Step:
    sources = {step.dataset: {"documents": step.totals.rows, "exact": 0, "fuzzy": partitions,
                              "retained": step.totals.rows - partitions, "rate": 0.025}
               for _, step in normalized}  # fmt: skip
    details = {"sources": sources, "clusters": {"histogram": [[2, 500], [8, 40], [1024, 1]], "largest": []}}
    parts = [part for name in sources for part in _partitions(name, partitions, 1)]
    return _step(home, "dedup", home.name, parts, normalized, {"threshold": 0.8, "measure": "jaccard"}, {}, details)


def _consolidate(home: Path, normalized: list[Step], removed: Step) -> Step:
    details: dict[str, Any] = {"sources": {}}
    parts: list[Partition] = []
    for _, step in normalized:
        number = len(step.partitions)
        own = _partitions(step.dataset, number, ROWS - 1)
        parts += own
        details["sources"][step.dataset] = {
            "records_in": ROWS * number, "dropped": {"fuzzy": number}, "records_out": (ROWS - 1) * number,
            "partitions": number, "text_bytes": totals_of(own).text_bytes,
        }  # fmt: skip
    rows = totals_of(parts).rows
    counters = {"consolidate/records_out": rows}
    return _step(home, "consolidate", home.name, parts, [*normalized, removed], {"drop": ["fuzzy"]}, counters, details)


def _tokenize(home: Path, kept: Step) -> Step:
    parts = [
        Partition(part.path, part.source, part.rows, part.bytes, part.xxh3, part.text_bytes, 100 * part.rows)
        for part in kept[1].partitions
    ]
    totals = totals_of(parts)
    details = {"lengths": {"64": totals.rows // 2, "128": totals.rows - totals.rows // 2}}
    counters = {"tokenize/documents": totals.rows, "tokenize/tokens": totals.tokens or 0}
    return _step(home, "tokenize", home.name, parts, [kept], {"tokenizer": "bytes"}, counters, details)


def _partitions(source: str, number: int, rows: int) -> list[Partition]:
    return [
        Partition(data_path(source, f"part-{part:05d}-of-{number:05d}.parquet"), source, rows, 1000 * rows, "0" * 32,
                  3000 * rows)
        for part in range(number)
    ]  # fmt: skip


def _step(  # noqa: PLR0917
    home: Path, stage: str, dataset: str, parts: list[Partition], inputs: list[Step], parameters: dict[str, Any],
    counters: dict[str, int], details: dict[str, Any] | None = None,
) -> Step:  # fmt: skip
    number = fingerprint(stage, 1, parameters, [manifest.identity for _, manifest in inputs])
    directory = str(home / f"{stage}-{number[:12]}")
    references = [
        InputReference(one.stage, os.path.relpath(manifest_url(place), directory), one.identity, one.checksum)
        for place, one in inputs
    ]
    Path(directory).mkdir(parents=True)
    if stage not in ("download", "train"):
        _ledger(directory, parts)
    return directory, write_manifest(
        Manifest(stage, dataset, number, number, parameters, references, SCHEMA, parts, totals_of(parts), counters,
                 Quarantine(0), details or {}, version=1),
        directory,
    )  # fmt: skip


def _ledger(directory: str, parts: list[Partition]) -> None:
    """Record one attempt per partition, and one more for the first, which ran out of memory."""
    ledger = LedgerWriter(directory, DRIVER)
    ledger.start()
    keys = [f"{number:05d}" for number in range(len(parts))]
    now = time.time()
    ledger.append(PhaseLine("work", keys, [1000] * len(keys), now))
    ledger.append(AttemptLine("work", keys[0], "0" * 32, 1, Cause.MEMORY, peak_memory=GIB + 5, budget=GIB, seconds=0.2,
                              time=now + 0.2))  # fmt: skip
    for number, key in enumerate(keys):
        ledger.append(_attempt(key, now + 0.2 + 0.25 * (number + 1)))
    ledger.close()


def _attempt(key: str, moment: float) -> AttemptLine:
    return AttemptLine("work", key, "0" * 32, 1, Cause.DONE, TaskResult(), peak_memory=GIB // 2, budget=GIB,
                       seconds=0.5, work_seconds=0.4, cpu_seconds=0.25, node="host", written=1000,
                       time=moment)  # fmt: skip
