"""Measures searches for substrings on real texts, those of `text_corpus.toml`, and compares them with a suffix array.

    python -m benchmarks.substrings          # MB of text per CPU-second, and bytes exchanged per byte of text
    python -m benchmarks.substrings suffix   # a few MB: CPU-seconds of both, which must find the same spans

The stage runs in this process, phase by phase, and reads normalized partitions. The suffix array needs the package
`pydivsufsort` (pip install pydivsufsort), which is no dependency of datakit. It holds the whole dataset in memory, at
about 25 times its size.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from datakit.engine.task import TaskResult
from datakit.passages import find_passages, stage
from datakit.passages.config import SearchConfig
from datakit.passages.substrings import find_stretches, within_documents
from datakit.storage.parquet import read_shard
from tests.support.data import need_data, texts_of
from tests.support.engine.inline import run_plan_inline
from tests.support.partitions import identity, normalized, step
from tests.support.passages.reference import Spans, joined, whole_characters

ROUNDS = 3
SMALL_BYTES = 6_000_000
SIZES = (50, 100, 200, 500)


def search_of(size: int, within: str = "dataset") -> SearchConfig:
    """Return a search for substrings of a size."""
    return SearchConfig("substring", within, size, ignore=())


def corpus() -> list[str]:
    """Return all texts, without exact duplicates."""
    files = sorted(path for path in (need_data() / "text").iterdir() if path.suffix in (".gz", ".zst", ".parquet"))
    return list(dict.fromkeys(text for path in files for text in texts_of(path)))


def stage_of(folder: Path, source: Any, config: SearchConfig) -> tuple[float, list[TaskResult], Spans, dict[str, Any]]:
    """Run the stage; return its CPU-seconds, the results of its tasks, its spans, and its counts."""
    made = step(folder, stage.NAME, [source], searches={"equal": msgspec.to_builtins(config)}, drop=[])
    start = time.process_time()
    output, results = run_plan_inline(stage.plan(made), str(folder))
    seconds = time.process_time() - start
    rows = [(part.source, row) for part in output.partitions for row in read_shard(str(folder / part.path)).to_pylist()]
    spans = {(name, row["id"]): [(one["start"], one["stop"]) for one in row["equal"]] for name, row in rows}
    return seconds, results, spans, output.details["sources"]["all"]["searches"]["equal"]


def exchanged(results: Sequence[TaskResult]) -> int:
    """Return the number of bytes that tasks wrote to the exchange."""
    return sum(file.bytes for one in results for file in one.outputs if file.path.startswith("exchange/"))


def measure() -> None:
    """Print the throughput of the stage for several sizes."""
    texts = corpus()
    size = sum(len(text.encode()) for text in texts)
    print(f"{len(texts):,} documents, {size / 1e6:.1f} MB, median of {ROUNDS} rounds")
    searches = {f"{one} bytes": search_of(one) for one in SIZES} | {"100, document": search_of(100, "document")}
    times: dict[str, list[float]] = {name: [] for name in searches}
    with tempfile.TemporaryDirectory() as folder:
        source = normalized(Path(folder) / "n", "all", texts, bits=2)
        for number in range(ROUNDS):
            for name, config in searches.items():
                seconds, results, _, counts = stage_of(Path(folder) / f"{name}-{number}", source, config)
                times[name].append(seconds)
                if number == ROUNDS - 1:
                    rate, share = size / 1e6 / statistics.median(times[name]), counts["marked_bytes"] / size
                    print(f"{name:<14} {rate:5.0f} MB per CPU-second, {exchanged(results) / size:5.2f} bytes exchanged "
                          f"per byte, {counts['marked']:,} spans with {share:.1%} of the bytes")  # fmt: skip


def by_suffix_array(texts: Sequence[str], size: int) -> tuple[float, Spans]:
    """Find the same spans with a suffix array of all texts. Return the CPU-seconds and the spans."""
    import pydivsufsort  # pyright: ignore[reportMissingImports]

    ordered = [text.encode() for text in sorted(texts, key=identity)]
    data = np.frombuffer(b"\xff".join(ordered) + b"\xff", np.uint8).copy()  # a byte that no text has
    start = time.process_time()
    suffixes = pydivsufsort.divsufsort(data)
    lengths = pydivsufsort.kasai(data, suffixes)  # of the prefix that each suffix shares with the next one
    groups = np.cumsum(np.append(0, lengths[:-1] < size))
    begins = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
    first = np.minimum.reduceat(suffixes, begins)[groups]
    stops = np.cumsum([len(text) + 1 for text in ordered])
    documents, homes = (np.searchsorted(stops, one, side="right") for one in (suffixes, first))
    inside = suffixes + size < stops[documents]
    copies = np.sort(suffixes[inside & ((documents != homes) | (first + size <= suffixes))].astype(np.int64))
    seconds = time.process_time() - start
    found, names = Spans(), [("all", identity(text.decode())) for text in ordered]
    for place in copies.tolist():
        document = int(np.searchsorted(stops, place, side="right"))
        begin = int(stops[document - 1]) if document else 0
        found.setdefault(names[document], []).append(
            whole_characters(ordered[document], place - begin, place - begin + size)
        )
    return seconds, {name: joined(spans) for name, spans in found.items()}


def compare() -> None:
    """Print the CPU-seconds of the stage and of a suffix array, which must find the same spans."""
    texts, size = list[str](), 0
    for text in corpus()[::7]:
        texts, size = [*texts, text], size + len(text.encode())
        if size > SMALL_BYTES:
            break
    print(f"{len(texts):,} documents, {size / 1e6:.1f} MB, median of {ROUNDS} rounds")
    with tempfile.TemporaryDirectory() as folder:
        source = normalized(Path(folder) / "n", "all", texts, bits=1)
        for least in SIZES:
            ours, theirs, spans = list[float](), list[float](), Spans()
            for number in range(ROUNDS):
                seconds, _, spans, _ = stage_of(Path(folder) / f"{least}-{number}", source, search_of(least))
                others, expected = by_suffix_array(texts, least)
                if spans != expected:
                    sys.exit(f"{least} bytes: the spans differ")
                ours, theirs = [*ours, seconds], [*theirs, others]
            mine, yours = statistics.median(ours), statistics.median(theirs)
            print(f"{least:>4} bytes: stage {mine:5.2f} CPU-seconds, suffix array {yours:5.2f}: {yours / mine:.1f} "
                  f"times as many; equal spans in {len(spans):,} documents")  # fmt: skip


if __name__ == "__main__":
    find_passages.warm()
    find_stretches.warm()
    within_documents.warm()
    compare() if sys.argv[1:] == ["suffix"] else measure()
