"""Run the checks that need a GPU: `make gpu-check`.

    python -m benchmarks.trainer.gpu_check [--steps 20] [--sequences 16] [--json gpu.json]

1. Every available backend equals the dense oracle (bf16, forward and gradients).
2. The compiled step holds no [experts, tokens, width] buffer, forward or backward, which would make the sparse layer
   dense.
3. One mixture-of-experts layer at real sizes: milliseconds, share of the device's peak, share of a dense layer's speed.
4. The attention kernels equal the oracle (bf16, forward and gradients, documents, a window, grouped heads).
5. The 1e19-FLOP model (d1024, 64 experts, 4 per token) trains on random tokens with the trainer's own loop: tokens/s
   and MFU, as docs/metrics.md defines them, and the devices' time by computation, communication, copies and waiting
   for the host.

A backend that cannot be used, or that exceeds the memory, is reported, and the checks go on. The exit code is 1 if this
happens to the backend that `auto` means, or if its step holds such a buffer.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JaxRuntimeError

from benchmarks.trainer.moe_layer import GPU_SHAPES, Shape, described, measure, moe_step, out_of_memory, worst_error
from datakit.errors import UsageError
from datakit.trainer.config import Log, Run
from datakit.trainer.loop.trace_summary import summarize
from datakit.trainer.metrics.json_lines import read_metrics
from datakit.trainer.models.attention.attention import attention
from datakit.trainer.models.attention.attention import resolve as resolve_attention
from datakit.trainer.models.experts.experts import resolve
from datakit.trainer.sizes.scaling import size
from datakit.trainer.train import train

CHECKED = Shape(4096, 512, 256, 32, 4)
ARRAY_TEXT = re.compile(r"tensor<((?:[0-9]+x)+)(?:f32|f16|bf16)>")
SHAPE_TEXT = re.compile(r"\b(?:f32|f16|bf16)\[([0-9,]+)\]")
VOCABULARY = 50_304
MEASURED = ("duration", "tokens_per_second", "mfu")
WARM_UP, TRACED = 2, 3  # steps that are not measured, and steps that are traced at the end
SMALLEST_WIDTH = 16  # more than any number of choices


def dense_buffers(program: str, experts: int, rows: int) -> list[str]:
    """Float buffers of a program with an axis of all experts, one of at least `rows`, and one of some width."""
    found = set()
    for line in buffers_of(program):
        for match in SHAPE_TEXT.finditer(line):
            if is_dense([int(axis) for axis in match.group(1).split(",")], experts, rows):
                found.add(match.group(0))
    return sorted(found)


def dense_arrays(program: str, experts: int, rows: int) -> list[str]:
    """Arrays of this kind in a program that is not yet compiled (StableHLO)."""
    found = {match.group(0): match.group(1) for match in ARRAY_TEXT.finditer(program)}
    axes = {text: [int(axis) for axis in sizes.split("x")[:-1]] for text, sizes in found.items()}
    return sorted(text for text, sizes in axes.items() if is_dense(sizes, experts, rows))


def is_dense(axes: list[int], experts: int, rows: int) -> bool:
    """Tell if an array has an axis of all experts, one of at least `rows`, and one of some width."""
    if experts not in axes:
        return False
    others = axes.copy()
    others.remove(experts)
    return len(others) >= 2 and max(others) >= rows and sorted(others)[-2] >= SMALLEST_WIDTH


def buffers_of(program: str) -> Iterator[str]:
    """Lines of a program that define real buffers; values inside a fusion are never stored."""
    fused = False
    for line in program.splitlines():
        if line.endswith("{"):
            fused = "fused" in line.split("(")[0] or "wrapped" in line.split("(")[0]
        elif not fused:
            yield line


def compiled_text(shape: Shape, backend: Any, dtype: Any) -> str:
    """The optimized program of a layer's forward and backward pass."""
    step, inputs = moe_step(shape, dtype, backend)
    return jax.jit(step).lower(*inputs).compile().as_text() or ""


def check_backends(backends: list[str], shape: Shape) -> dict[str, dict[str, Any]]:
    """Error against the oracle and dense buffers of each backend, or why it cannot be used."""
    found: dict[str, dict[str, Any]] = {}
    for backend in backends:
        try:
            error = worst_error(shape, jax.numpy.bfloat16, backend)
            text = compiled_text(shape, backend, jax.numpy.bfloat16)
            found[backend] = {"error": error, "dense_buffers": dense_buffers(text, shape.experts, shape.tokens)}
        except UsageError as error:
            found[backend] = {"failed": str(error)}
        except JaxRuntimeError as error:
            found[backend] = {"failed": out_of_memory(error)}
        print(f"{backend}: {found[backend]}", flush=True)
    return found


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
        "model": dataclasses.asdict(plan.model),
        "batch": [sequences, length],
        "seconds": usual["duration"],
        "tokens_per_second": usual["tokens_per_second"],
        "mfu": None if np.isnan(usual["mfu"]) else usual["mfu"],
        "accounting": "3 x forward FLOPs with head, attention unhalved, over dense bf16 peak",
        "shares": {name: seconds / trace.seconds for name, seconds in parts.items()},
        "peak_memory_gib": memory.get("peak_bytes_in_use", 0) / 2**30,
    }


def check_attention(length: int = 1024, heads: int = 8, kv_heads: int = 2, width: int = 128) -> dict[str, Any]:
    """Compare the attention kernels that `auto` means with the oracle, forward and gradients, in bf16."""
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(2, length, count, width) for count in (heads, kv_heads, kv_heads)]
    arrays = [jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, shapes, strict=True)]
    segments = jnp.arange(length)[None] // 300 + jnp.ones((2, 1), jnp.int32)

    def value(backend: Any) -> Any:
        def loss(query: Any, key: Any, value: Any) -> Any:
            y = attention(query, key, value, segments, length // 2, backend)
            return jnp.sum(jnp.sin(y.astype(jnp.float32))), y

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*arrays)

    chosen = resolve_attention("auto")
    try:
        found, wanted = (jax.tree.leaves(value(backend)) for backend in (chosen, "dense"))
    except (JaxRuntimeError, NotImplementedError) as error:
        return {"backend": chosen, "failed": str(error).splitlines()[0]}
    pairs = zip(found, wanted, strict=True)
    worst = max(float(jnp.max(jnp.abs(a - b)) / (jnp.max(jnp.abs(b)) + 1e-30)) for a, b in pairs)
    wrong = {} if worst < 6e-2 else {"failed": f"differs from the oracle by {worst:.1e}"}
    return {"backend": chosen, "error": worst, **wrong}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = jax.devices()[0]
    if device.platform != "gpu":
        print(f"no GPU here ({device.device_kind}); pip install 'jax[cuda12]' on a machine that has one")
        return 2
    report = full_report(resolve("auto"), options)
    print(json.dumps(report, indent=1))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(not passed(report))


def full_report(default: str, options: argparse.Namespace) -> dict[str, Any]:
    """Results of all checks. The default backend is compared with those that need no package."""
    checked = check_backends(list(dict.fromkeys([default, "tiles", "ragged"])), CHECKED)
    usable = [name for name, result in checked.items() if "failed" not in result]
    layers = []
    for shape in GPU_SHAPES:
        rows = measure(shape, usable, "bfloat16", options.steps)
        layers += rows
        print(shape, *map(described, rows), sep="\n", flush=True)
    return {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "default": default,
        "backends": checked,
        "layers": layers,
        "attention": check_attention(),
        "training": checked_training(options) if default in usable else {"failed": checked[default]["failed"]},
    }


def checked_training(options: argparse.Namespace) -> dict[str, Any]:
    """Speed of training, or the error if the training step exceeds the memory."""
    try:
        return train_speed(options.sequences, options.length, options.steps)
    except JaxRuntimeError as error:
        return {"failed": out_of_memory(error)}


def passed(report: dict[str, Any]) -> bool:
    """Tell if the default backend works at every size and holds no dense buffer."""
    default = report["default"]
    rows = [report["backends"][default], report["training"], report["attention"]]
    rows += [row for row in report["layers"] if row["backend"] == default]
    return not any(row.get("failed") or row.get("dense_buffers") for row in rows)


if __name__ == "__main__":
    sys.exit(main())
