"""Compares normalize with the sum of the steps that it cannot do without, on one core: decompressing gzip with isal,
parsing with orjson, hashing the texts with xxh3, and writing Parquet with zstd-3.

    python -m benchmarks.normalize_floor TEXTS [--rounds 3]

TEXTS is a directory of `.jsonl.gz` files (`python -m benchmarks.peers.scaled_text DIR --copies 1`). In each round, the
steps are measured one after another, each over all files, and then `datakit run --until normalize --workers 1` on a
fresh root. All of it runs on one core. Normalize writes zstd-1 by design, sorts and removes exact duplicates, and the
CPU time is that of its whole process tree, with the driver and the fork servers. The last line gives the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from isal import igzip  # pyright: ignore[reportMissingImports]

from benchmarks.peers.process_tree import Usage, measured

STEPS = ("gunzip", "parse", "hash", "write")


def floor(files: list[Path], output: Path) -> dict[str, float]:
    """Return the CPU-seconds of each step over all files. One file is in memory at a time."""
    seconds: dict[str, float] = dict.fromkeys(STEPS, 0.0)

    def timed(step: str, work: Callable[[], Any]) -> Any:
        started = time.process_time()
        result = work()
        seconds[step] += time.process_time() - started
        return result

    for number, path in enumerate(files):
        data = timed("gunzip", lambda path=path: igzip.open(path).read())
        records = timed("parse", lambda data=data: [orjson.loads(line) for line in data.splitlines()])
        digests = timed(
            "hash", lambda records=records: [xxhash.xxh3_128_hexdigest(record["text"].encode()) for record in records]
        )
        timed("write", lambda *_, r=records, d=digests, n=number: _write(r, d, output / f"{n}.parquet"))
    return seconds


def _write(records: list[dict[str, Any]], digests: list[str], path: Path) -> None:
    names = list(dict.fromkeys(name for record in records for name in record if name not in ("id", "text")))
    columns = {
        "id": pa.array(digests, pa.string()),
        "text": pa.array([record["text"] for record in records], pa.large_string()),
        "source_id": pa.array([str(record.get("id")) for record in records], pa.string()),
        **{name: pa.array([record.get(name) for record in records]) for name in names},
    }
    pq.write_table(pa.table(columns), path, compression="zstd", compression_level=3, use_dictionary=False)


def floor_apart(texts: Path, output: Path) -> dict[str, float]:
    """Call `floor` in a process of its own: the peak memory that the system reports for a command includes that of the
    process that started it.
    """
    command = [sys.executable, "-m", "benchmarks.normalize_floor", str(texts), "--floor", str(output)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def normalize(files: list[Path], scratch: Path) -> tuple[Usage, float]:
    """Normalize the files with one worker. Return what the process tree used, and the CPU-seconds of the tasks."""
    names = sorted({file.name.split(".")[0] for file in files})
    sources = [f'[[sources]]\nname = "{one}"\nurl = "{files[0].parent}"\ninclude = ["{one}.*"]\n' for one in names]
    recipe, root = scratch / "texts.toml", scratch / "root"
    recipe.write_text('name = "texts"\n' + "".join(sources) + '[tokenize]\ntokenizer = "bytes"\n')
    command = [sys.executable, "-m", "datakit", "run", str(recipe), "--root", str(root), "--workers", "1",
               "--until", "normalize"]  # fmt: skip
    usage = measured(command, scratch / "run.log")
    return usage, sum(map(_cpu_seconds, root.glob("sources/*/normalize-*/ledger/*.jsonl")))


def _cpu_seconds(ledger: Path) -> float:
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    return sum(line.get("cpu_seconds", 0.0) for line in lines)


def main() -> None:
    """Print one line per round, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--floor", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    files = sorted(options.texts.resolve().glob("*.jsonl.gz"))
    if options.floor:
        print(json.dumps(floor(files, options.floor)))
        return
    ratios = []
    for number in range(-1, options.rounds):  # the first round compiles kernels, and does not count
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "floor").mkdir()
            seconds = floor_apart(options.texts.resolve(), Path(folder) / "floor")
            usage, tasks = normalize(files, Path(folder))
        if number < 0:
            continue
        total = sum(seconds.values())
        ratios.append((total / usage.cpu, total / tasks if tasks else 0.0, usage.largest / 1e6))
        steps = ", ".join(f"{name} {value:.2f}" for name, value in seconds.items())
        print(f"round {number}: floor {total:.2f} CPU s ({steps}); normalize {usage.cpu:.2f} CPU s, tasks {tasks:.2f}; "
              f"largest process {usage.largest / 1e6:.0f} MB", flush=True)  # fmt: skip
    run, tasks, memory = (statistics.median(column) for column in zip(*ratios, strict=True))
    print(f"median: {run:.2f} of the floor's speed for the whole run, {tasks:.2f} for its tasks; {memory:.0f} MB")


if __name__ == "__main__":
    main()
