"""Measures the throughput of the stage passages on real texts, those of `text_corpus.toml`.

    python -m benchmarks.passages    # MB of text per CPU-second: finding passages in memory, and the whole stage

The stage runs in this process, phase by phase, and reads normalized partitions. For the memory of a passage with many
copies, see `bounded_memory.py`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import msgspec
import pyarrow as pa

from datakit.passages import find_passages, stage
from datakit.passages.config import SearchConfig
from tests.support.data import need_data, texts_of
from tests.support.engine.inline import run_plan_inline
from tests.support.partitions import normalized, step

ROUNDS = 5
SEARCHES = {
    "lines": SearchConfig("line"),
    "paragraphs": SearchConfig("paragraph"),
    "all differences": SearchConfig("paragraph", ignore=("white_space", "case", "digits", "punctuation")),
}


def main() -> None:
    """Print the throughput of each search, and of a stage with one search."""
    files = sorted(path for path in (need_data() / "text").iterdir() if path.suffix in (".gz", ".zst", ".parquet"))
    texts = list(dict.fromkeys(text for path in files for text in texts_of(path)))
    column = pa.array(texts, pa.large_string())
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(texts):,} documents, {size:.1f} MB, median of {ROUNDS} rounds")
    find_passages.warm()
    times: dict[str, list[float]] = {name: [] for name in (*SEARCHES, "stage with lines")}
    counts: object = None
    with tempfile.TemporaryDirectory() as folder:
        source = normalized(Path(folder) / "n", "all", texts, bits=2)
        for number in range(ROUNDS):
            for name, config in SEARCHES.items():
                start = time.process_time()
                for _ in find_passages.find_passages(column, find_passages.rules_of(config, 0)):
                    pass
                times[name].append(time.process_time() - start)
            out, plain = Path(folder) / f"out{number}", {"lines": msgspec.to_builtins(SEARCHES["lines"])}
            start = time.process_time()
            made = step(out, stage.NAME, [source], searches=plain, drop=[])
            output, _ = run_plan_inline(stage.plan(made), str(out))
            times["stage with lines"].append(time.process_time() - start)
            counts = output.details["sources"]["all"]
    for name, seconds in times.items():
        print(f"{name:<20} {size / statistics.median(seconds):6.0f} MB per CPU-second")
    print(counts)


if __name__ == "__main__":
    main()
