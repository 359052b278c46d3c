"""Measure the training speed of models of several sizes, with the trainer's own loop and random tokens.

    python -m benchmarks.trainer.training_speed [--steps 20] [--sequences 16] [--length 4096] [--json rows.jsonl]

A size is a compute budget in FLOPs and a width, from which `datakit size` derives a model: by default, all of `SIZES`.
A row has the median step, tokens/s and MFU, as `trainer/metrics/trackers.py` defines them, and the devices' time by
computation, communication, copies and waiting for the host. Batches have `--sequences` sequences whatever the size. If
a size exceeds the memory, its row has the error, and the others are measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from benchmarks.trainer.moe_layer import out_of_memory
from datakit.errors import UsageError
from datakit.trainer.config import Log, Run
from datakit.trainer.loop.trace_summary import summarize
from datakit.trainer.metrics.json_lines import read_metrics
from datakit.trainer.models import grug
from datakit.trainer.models.weights import parameter_count
from datakit.trainer.sizes.scaling import size
from datakit.trainer.train import train

SIZES = ((1e18, 512), (3e18, 768), (1e19, 1024), (3e19, 1280))  # FLOPs and width: 0.2, 0.6, 1.3, 2.3 G parameters
VOCABULARY = 50_304
MEASURED = ("duration", "tokens_per_second", "mfu")
WARM_UP, TRACED = 2, 3  # steps that are not measured, and steps that are traced at the end
HEADER = "    budget  width  parameters  tokens/step   step ms   tokens/s     MFU  compute  host  peak GiB"


class Random:
    """A source of batches of random tokens."""

    def __init__(self, sequences: int, length: int) -> None:
        self.tokens = np.random.default_rng(0).integers(0, VOCABULARY, (sequences, length), dtype=np.int32)
        self.segments = np.ones_like(self.tokens)
        self.loss_mask = np.ones(self.tokens.shape, bool)

    def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Random, None, None]:
        assert stop is not None
        yield from (self for _ in range(start, stop))

    def outline(self, steps: int) -> list[tuple[int, int, int]]:
        return [(steps, *self.tokens.shape)]

    def record(self) -> dict[str, Any]:
        return {"fingerprint": f"random-{self.tokens.shape}"}

    def verify(self, saved: dict[str, Any], step: int) -> list[str]:
        return []

    def snapshot(self, step: int) -> dict[str, float]:
        return {}


def train_speed(sequences: int, length: int, steps: int, flops: float = 1e19, hidden: int = 1024) -> dict[str, Any]:
    """Train the model for a budget with the trainer's own loop; return the median step, tokens/s, MFU, and how the
    devices spent the last steps.
    """
    plan = size(flops, hidden, vocabulary=VOCABULARY, sequence=length)
    log, count = Log(profile=(steps, steps + TRACED)), steps + TRACED
    run = Run(name="gpu-check", steps=count, model=plan.model, optimizer=plan.optimizer, compilation_cache="", log=log)
    with tempfile.TemporaryDirectory() as root:
        directory = train(run, Random(sequences, length), root).directory
        rows, trace = read_metrics(directory)[WARM_UP:steps], summarize(directory)
    usual = {name: float(np.median([row.get(f"throughput/{name}", np.nan) for row in rows])) for name in MEASURED}
    memory = jax.devices()[0].memory_stats() or {}
    parts = {"compute": trace.compute, "communication": trace.communication, "copy": trace.copy, "host": trace.idle}
    return {
        "flops": flops,
        "hidden": hidden,
        "parameters": parameter_count(grug.weights(plan.model)),
        "model": dataclasses.asdict(plan.model),
        "batch": [sequences, length],
        "seconds": usual["duration"],
        "tokens_per_second": usual["tokens_per_second"],
        "mfu": None if np.isnan(usual["mfu"]) else usual["mfu"],
        "accounting": "3 x forward FLOPs with head, attention unhalved, over dense bf16 peak",
        "shares": {name: seconds / trace.seconds for name, seconds in parts.items()},
        "peak_memory_gib": memory.get("peak_bytes_in_use", 0) / 2**30,
    }


def speeds(sizes: Sequence[tuple[float, int]], measure: Callable[[float, int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Measure each size and print its row, and at the end the table. Return the rows; a size that does not fit has the
    error.
    """
    rows = []
    for flops, hidden in sizes:
        try:
            row = measure(flops, hidden)
        except JaxRuntimeError as error:
            row = {"flops": flops, "hidden": hidden, "failed": out_of_memory(error)}
        except UsageError as error:  # the trainer's own check of the memory, before the first step
            row = {"flops": flops, "hidden": hidden, "failed": str(error)}
        print(described(row), flush=True)
        rows.append(row)
    print(HEADER, *map(described, rows), sep="\n", flush=True)
    return rows


def described(row: dict[str, Any]) -> str:
    """A row as a line of the table."""
    begin = f"{row['flops']:10.0e} {row['hidden']:6}"
    if "failed" in row:
        return f"{begin}  {row['failed'].splitlines()[0]}"
    sequences, length = row["batch"]
    mfu = "      -" if row["mfu"] is None else f"{row['mfu']:5.1f} %"
    return (
        f"{begin} {row['parameters'] / 1e9:9.2f} G {sequences * length:12,} {row['seconds'] * 1e3:9.1f} "
        f"{row['tokens_per_second']:10,.0f} {mfu} {row['shares']['compute']:8.0%} {row['shares']['host']:5.0%} "
        f"{row['peak_memory_gib']:9.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", action="append", help="budget,width such as 1e19,1024; can be repeated")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--json", type=Path, help="append one JSON line per row")
    options = parser.parse_args()
    pairs = [text.split(",") for text in options.size or []]
    sizes = [(float(flops), int(hidden)) for flops, hidden in pairs] or SIZES
    rows = speeds(sizes, lambda *pair: train_speed(options.sequences, options.length, options.steps, *pair))
    if options.json:
        with options.json.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
