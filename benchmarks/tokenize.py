"""Tokenize clean Parquet into a cache: rates per CPU-second, ratios to the bare libraries, bytes per byte of cache.

    python -m benchmarks.tokenize [--rounds N] [--cpus N] [--tokenizer FILE]

The 121 MB of test texts are normalized once. Then fresh processes take turns, one of each kind per round, on the same
number of CPUs; medians are printed. Every measurement is a first pass, because encoders remember words and are faster
on text they have seen.

    stage       the whole step in one process: Parquet read, encoded, a sample verified, the cache written and synced
    encoder     the stage's encoder over the same batches: documents of any length, ids as arrays
    fastokens   encode_batch_flat over the same lists of strings, nothing else
    tokenizers  encode_batch_fast over an evenly spread tenth of the documents (it takes 20 times as long)
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
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import datakit
from datakit.engine.task import Step, StepInput
from datakit.recipe import parse_recipe
from datakit.storage.manifest import read_manifest
from datakit.tokenize import stage
from datakit.tokenize.encoders.threads import limit_threads
from datakit.tokenize.encoders.tokenizer import Tokenizer, load
from datakit.tokenize.text_batches import TextBatch, text_batches
from tests.support.data import data_dir
from tests.support.engine.inline import run_plan_inline

KINDS = ("stage", "encoder", "fastokens", "tokenizers")
TENTH = 10


def make_clean(root: Path) -> Path:
    """Normalize the texts, and select all of them; return the root."""
    texts = data_dir() / "text"
    sources = [{"name": path.name.split(".")[0], "url": str(path)} for path in sorted(texts.iterdir())]
    recipe = parse_recipe({"name": "texts", "sources": sources}, "benchmark", root)
    datakit.run(recipe, root=str(root), until="select")
    return root


def inputs(clean: Path) -> list[StepInput]:
    """The normalize steps of a root, and its select step."""
    normalized = sorted((clean / "sources").glob("*/normalize-*"))
    read = [(path, path.parent.name) for path in normalized] + [(next((clean / "texts").glob("select-*")), None)]
    return [
        StepInput(path.name.rpartition("-")[0], source, str(path), read_manifest(str(path))) for path, source in read
    ]


def batches(clean: Path) -> Iterator[TextBatch]:
    """All documents, batched as the stage reads them."""
    for entry in inputs(clean)[:-1]:
        for partition in entry.manifest.partitions:
            yield from text_batches(f"{entry.directory}/{partition.path}")


def run_stage(clean: Path, tokenizer: str, scratch: Path) -> int:
    """Run the whole step in this process, as its tasks run in theirs; return the bytes written."""
    import hashlib

    from tests.support.caches import contract

    parameters = {"tokenizer_sha256": hashlib.sha256(Path(tokenizer).read_bytes()).hexdigest()}
    settled = contract(scratch, parameters, operations={"tokenizer_path": tokenizer})
    step = Step("tokenize", "texts", str(scratch / "cache"), "0" * 32, parameters, (*inputs(clean), settled))
    run_plan_inline(stage.plan(step), step.directory)
    return sum(path.stat().st_size for path in scratch.rglob("*") if path.is_file())


def child(kind: str, clean: Path, tokenizer: str, cpus: int) -> dict[str, float]:
    """One measurement, in a process of its own."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])
    loaded = load(tokenizer)
    assert isinstance(loaded, Tokenizer)
    if kind == "stage":
        with tempfile.TemporaryDirectory(dir=clean.parent) as scratch:
            before = written()
            figures = timed(lambda: run_stage(clean, tokenizer, Path(scratch)))
            figures["amplification"] = (written() - before) / figures.pop("result")
        return {**figures, "bytes": sum(entry.manifest.totals.text_bytes or 0 for entry in inputs(clean)[:-1])}
    loaded.prepare()
    encoder = loaded.encoder("auto" if kind == "encoder" else kind)
    limit_threads(encoder, cpus)
    texts = loaded.long_texts(encoder)
    size, figures = 0, {"cpu": 0.0, "wall": 0.0}
    for batch in batches(clean):
        strings = batch.strings()
        if kind == "tokenizers":
            strings = strings[::TENTH]
        size += sum(len(text.encode()) for text in strings)
        whole = kind == "encoder"
        found = timed(partial(texts.encode_documents, batch) if whole else partial(encoder.encode_batch, strings))
        figures = {key: figures[key] + found[key] for key in figures}
    return {**figures, "bytes": size}


def timed(work: Callable[[], object]) -> dict[str, float]:
    """CPU and wall seconds of a call, and its result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "result": result}  # pyright: ignore


def written() -> int:
    """Bytes this process has passed to `write` so far."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["wchar"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--tokenizer", default="gpt-neox-olmo-dolma-v1_5.json")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    tokenizer = str(data_dir() / "tokenizers" / arguments.tokenizer)
    if arguments.child:
        kind, clean = arguments.child
        print(json.dumps(child(kind, Path(clean), tokenizer, arguments.cpus)))
        return
    with tempfile.TemporaryDirectory() as root:
        clean = make_clean(Path(root))
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for _ in range(arguments.rounds):
            for kind in KINDS:
                command = [sys.executable, "-m", "benchmarks.tokenize", "--child", kind, str(clean)]
                more = ["--cpus", str(arguments.cpus), "--tokenizer", arguments.tokenizer]
                done = subprocess.run([*command, *more], capture_output=True, text=True, check=True)
                found[kind].append(json.loads(done.stdout))
    report(found)


def report(found: dict[str, list[dict[str, float]]]) -> None:
    """Print medians, and ratios of each round to the bare libraries of the same round."""
    print("| | MB/s | MB per CPU-s | of fastokens | times tokenizers |\n|---|--:|--:|--:|--:|")
    rates = {kind: [one["bytes"] / 1e6 / one["cpu"] for one in found[kind]] for kind in KINDS}
    for kind in KINDS:
        wall = statistics.median(one["bytes"] / 1e6 / one["wall"] for one in found[kind])
        of_fast, of_reference = (
            statistics.median(mine / other for mine, other in zip(rates[kind], rates[base], strict=True))
            for base in ("fastokens", "tokenizers")
        )
        print(f"| {kind} | {wall:.1f} | {statistics.median(rates[kind]):.1f} | {of_fast:.2f} | {of_reference:.1f} |")
    amplification = statistics.median(one["amplification"] for one in found["stage"])
    print(f"\nbytes written for a byte of cache: {amplification:.4f}")


if __name__ == "__main__":
    main()
