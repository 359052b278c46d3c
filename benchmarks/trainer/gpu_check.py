"""Run the checks that need a GPU: `make gpu-check`, or with a comparison `make gpu-check PEER=/path/to/python`.

    python -m benchmarks.trainer.gpu_check [--python PEER] [--steps 20] [--sequences 16] [--json gpu.json]

1. Every available backend equals the dense oracle (bf16, forward and gradients).
2. The compiled step holds no [experts, tokens, width] buffer, forward or backward, which would make the sparse layer
   dense.
3. The grouped products, forward and both gradients, beside dense products of equal FLOPs, in turns
   (`grouped_products.py`): equal to a loop over experts, milliseconds, ratio and goal.
4. One mixture-of-experts layer at real sizes: milliseconds, share of the device's peak, share of a dense layer's speed.
5. The attention kernels equal the oracle (bf16, forward and gradients, documents, a window, grouped heads).
6. Models of several sizes train on random tokens with the trainer's own loop: a table with tokens/s, MFU, and the
   devices' time (`training_speed.py`); docs/metrics.md defines the rates.
7. With `--python`, a Python that has `transformers` and `torch`: a training step beside that of `transformers`, in
   turns (`step_vs_transformers.py`). This part runs first, in a process of its own, which needs the whole GPU.

A backend that cannot be used, or that exceeds the memory, is reported, and the checks go on. The exit code is 1 if this
happens to the backend that `auto` means, if its step holds such a buffer, if a product is wrong, or if no model of the
table could be trained. A missed goal is only reported.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.errors import JaxRuntimeError

from benchmarks.trainer import grouped_products
from benchmarks.trainer.moe_layer import GPU_SHAPES, Shape, described, measure, moe_step, worst_error
from benchmarks.trainer.training_speed import SIZES, speeds, train_speed
from datakit.errors import UsageError
from datakit.trainer.models.attention.attention import attention
from datakit.trainer.models.attention.attention import resolve as resolve_attention
from datakit.trainer.models.experts.experts import resolve

CHECKED = Shape(4096, 512, 256, 32, 4)
ARRAY_TEXT = re.compile(r"tensor<((?:[0-9]+x)+)(?:f32|f16|bf16)>")
SHAPE_TEXT = re.compile(r"\b(?:f32|f16|bf16)\[([0-9,]+)\]")
KERNEL_ERRORS = (JaxRuntimeError, NotImplementedError, ValueError, ExceptionGroup)  # when kernels are made or run
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
    """Return True if an array has an axis of all experts, one of at least `rows`, and one of some width."""
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


def first_line(error: Exception) -> str:
    """The kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


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
        except KERNEL_ERRORS as error:
            found[backend] = {"failed": first_line(error)}
        print(f"{backend}: {found[backend]}", flush=True)
    return found


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
    parser.add_argument("--python", type=Path, help="a Python that has transformers and torch, to compare with")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # First, because from its first use on, JAX reserves most of the GPU's memory in this process.
    beside = beside_transformers(options.python)
    device = jax.devices()[0]
    if device.platform != "gpu":
        print(f"no GPU here ({device.device_kind}); pip install 'jax[cuda12]' on a machine that has one")
        return 2
    report = {**full_report(resolve("auto"), options), "transformers": beside}
    print(json.dumps(report, indent=1))
    print("beside transformers:", beside.get("left_out") or beside.get("failed") or beside["wall"])
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(not passed(report))


def beside_transformers(python: Path | None, *options: str) -> dict[str, Any]:
    """Compare a training step with that of `transformers`, in another process. Return its row, or why there is none."""
    if python is None:
        return {"left_out": "the comparison with transformers was left out; --python names a Python that has it"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row.json"
        command = [sys.executable, "-m", "benchmarks.trainer.step_vs_transformers", "--python", str(python)]
        code = subprocess.run(
            [*command, "--json", str(path), *(options or ("--device", "cuda"))], check=False
        ).returncode
        return json.loads(path.read_text()) if code == 0 else {"failed": f"exit code {code}; its message is above"}


def full_report(default: str, options: argparse.Namespace) -> dict[str, Any]:
    """Results of all checks in this process. The default backend is compared with those that need no package."""
    checked = check_backends(list(dict.fromkeys([default, "tiles", "ragged"])), CHECKED)
    usable = [name for name, result in checked.items() if "failed" not in result]
    products, layers = [], []
    for shape in GPU_SHAPES:
        print(shape, flush=True)
        if "tokamax" in usable:
            products += checked_products(shape, options.steps)
        rows = measure(shape, usable, "bfloat16", options.steps)
        layers += rows
        print(*map(described, rows), sep="\n", flush=True)
    return {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "default": default,
        "backends": checked,
        "products": products,
        "layers": layers,
        "attention": check_attention(),
        "training": trained(options) if default in usable else [{"failed": checked[default]["failed"]}],
    }


def checked_products(shape: Shape, rounds: int, backend: str = "tokamax", dtype: str = "bfloat16") -> list[Any]:
    """Measure and print the grouped products of a layer."""
    try:
        rows = grouped_products.measure_products(shape, backend, dtype, rounds)
    except KERNEL_ERRORS as error:
        rows = [{"backend": backend, "product": "", "pass": "", "failed": first_line(error)}]
    print(*map(grouped_products.described, rows), sep="\n", flush=True)
    return rows


def trained(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Speeds of training models of several sizes."""
    return speeds(SIZES, lambda *pair: train_speed(options.sequences, options.length, options.steps, *pair))


def passed(report: dict[str, Any]) -> bool:
    """Return True if the default backend works at every size and holds no dense buffer, if the products are right, and
    if at least one model could be trained.
    """
    default = report["default"]
    rows = [report["backends"][default], report["attention"], *report["products"]]
    rows += [row for row in report["layers"] if row["backend"] == default]
    trains = any("failed" not in row for row in report["training"])
    return trains and not any(row.get("failed") or row.get("dense_buffers") for row in rows)


if __name__ == "__main__":
    sys.exit(main())
