"""Time each grouped product of a mixture layer beside a dense product of equal FLOPs.

    python -m benchmarks.trainer.grouped_products                  # the standard shapes of this device
    python -m benchmarks.trainer.grouped_products --shape 4096,256,512,8,2 --backend ragged --json rows.jsonl

A shape is tokens, hidden, expert width, experts, choices. A layer has two products, "in" (hidden -> 2 x width) and
"out" (width -> hidden), each with three passes: forward, the gradient by rows (dlhs), the gradient by weights (drhs).
The dense product has as many rows, and a single matrix in place of one per expert: `x @ w`, `dy @ w.T`, `x.T @ dy`. The
rows of the experts are unequal, as a random router sends them. Both take turns of several calls in one process; the
result is the ratio of their medians, 1.0 if the grouped product is as fast as the dense one. Before, each pass is
compared with a loop over experts in fp32, in which some experts have no rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.trainer.moe_layer import (
    CPU_SHAPES,
    GPU_SHAPES,
    TOLERANCE,
    Shape,
    Step,
    append_row,
    shapes_of,
    take_turns,
    warm_up,
)
from datakit.trainer.metrics.trackers import peak_flops
from datakit.trainer.models.experts import grouped_product

GOALS = {"forward": 0.92, "dlhs": 0.85, "drhs": 0.85}  # of the dense product's speed
CALLS = 8  # per turn, so that the time to start a call is hidden
CHECKED = (100, 0, 37, 0, 119, 0)  # rows per expert of the comparison with the loop
Pass = Callable[[Any, Any, Any], Any]


class Product(NamedTuple):
    """Sizes of one grouped product: rows of all experts, widths of a row before and after."""

    rows: int
    inner: int
    outer: int

    @property
    def flops(self) -> float:
        """FLOPs of each of the three passes."""
        return 2.0 * self.rows * self.inner * self.outer


def products_of(shape: Shape) -> dict[str, Product]:
    """The two products of a layer."""
    rows = shape.tokens * shape.choices
    return {"in": Product(rows, shape.hidden, 2 * shape.width), "out": Product(rows, shape.width, shape.hidden)}


def passes_of(backend: str) -> dict[str, Pass]:
    """The passes of a backend: (rows, weights, count) -> y, (dy, weights, count) -> dx and (rows, dy, count) -> dw."""
    if backend == "tokamax":
        forward = grouped_product.tokamax_matmul
        return dict(
            zip(GOALS, (forward, grouped_product.gradient_by_rows, grouped_product.gradient_by_weights), strict=True)
        )
    numbers = (grouped_product.PLAIN, grouped_product.BY_ROWS, grouped_product.BY_WEIGHTS)
    return {name: ragged(number) for name, number in zip(GOALS, numbers, strict=True)}


def ragged(dimensions: Any) -> Pass:
    """A pass by `jax.lax.ragged_dot_general`."""

    def multiply(left: Any, right: Any, count: Any) -> Any:
        return jax.lax.ragged_dot_general(left, right, count, dimensions, preferred_element_type=left.dtype)

    return multiply


DENSE: dict[str, Callable[[Any, Any], Any]] = {
    "forward": lambda x, w: x @ w,
    "dlhs": lambda dy, w: dy @ w.T,
    "drhs": lambda x, dy: x.T @ dy,
}


def arrays_of(product: Product, experts: int, dtype: Any) -> dict[str, tuple[Any, Any]]:
    """The two operands of each pass."""
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = (product.rows, product.inner), (product.rows, product.outer), (experts, product.inner, product.outer)
    x, dy, w = (jax.random.normal(key, size, dtype) for key, size in zip(keys, sizes, strict=True))
    return {"forward": (x, w), "dlhs": (dy, w), "drhs": (x, dy)}


def worst_error(backend: str, dtype: Any, inner: int = 128, outer: int = 256) -> dict[str, float]:
    """Each pass's largest difference from a loop over experts, relative to the largest entry."""
    count = np.array(CHECKED)
    given = arrays_of(Product(int(count.sum()), inner, outer), len(count), dtype)
    found = {}
    for name, multiply in passes_of(backend).items():
        result = np.asarray(jax.jit(multiply)(*given[name], jnp.array(count)), np.float32)
        left, right = (np.asarray(array, np.float32) for array in given[name])
        wanted = looped(name, left, right, count)
        found[name] = float(np.max(np.abs(result - wanted)) / np.max(np.abs(wanted)))
    return found


def looped(name: str, left: Any, right: Any, count: Any) -> Any:
    """One pass, expert by expert."""
    ends = np.cumsum(count)
    parts = [slice(end - rows, end) for end, rows in zip(ends, count, strict=True)]
    if name == "drhs":
        return np.stack([left[part].T @ right[part] for part in parts])
    matrices = right if name == "forward" else right.transpose(0, 2, 1)
    return np.concatenate([left[part] @ matrix for part, matrix in zip(parts, matrices, strict=True)])


def counts_of(shape: Shape) -> Any:
    """Rows per expert, as a random router sends them."""
    chances = np.full(shape.experts, 1 / shape.experts)
    return jnp.array(np.random.default_rng(0).multinomial(shape.tokens * shape.choices, chances), jnp.int32)


def measure_products(shape: Shape, backend: str, dtype: str, rounds: int, calls: int = CALLS) -> list[dict[str, Any]]:
    """A row for each pass of both products. A pass that exceeds the memory or has wrong results is not timed."""
    errors, rows = worst_error(backend, dtype), []
    for which, product in products_of(shape).items():
        grouped = arrays_of(product, shape.experts, dtype)
        one = grouped["forward"][1][0]  # the matrix of the dense product
        for name, multiply in passes_of(backend).items():
            common = {"device": jax.devices()[0].device_kind, "dtype": dtype, **shape._asdict(), "backend": backend}
            row = {**common, "product": which, "pass": name, "error": errors[name], "goal": GOALS[name]}
            if not errors[name] <= TOLERANCE[dtype]:
                rows.append({**row, "failed": f"differs from a loop over experts by {errors[name]:.1e}"})
                continue
            steps: dict[str, Step] = {
                "grouped": (jax.jit(multiply), (*grouped[name], counts_of(shape))),
                "dense": (jax.jit(DENSE[name]), (grouped[name][0], grouped[name][1] if name == "drhs" else one)),
            }
            rows.append({**row, **timed(steps, product, rounds, calls)})
    return rows


def timed(steps: dict[str, Step], product: Product, rounds: int, calls: int) -> dict[str, Any]:
    """Median milliseconds of both, and their ratio."""
    fitting, failures = warm_up(steps)
    if failures:
        return {"failed": "; ".join(f"{name}: {failure}" for name, failure in failures.items())}
    seconds = {name: float(np.median(values)) for name, values in take_turns(fitting, rounds, calls).items()}
    peak = peak_flops(jax.devices()[0].device_kind)
    return {
        "milliseconds": seconds["grouped"] * 1e3,
        "dense_milliseconds": seconds["dense"] * 1e3,
        "percent_of_peak": 100 * product.flops / seconds["grouped"] / peak if peak else None,
        "of_dense": seconds["dense"] / seconds["grouped"],
    }


def described(row: dict[str, Any]) -> str:
    """A row as a line of text."""
    begin = f"  {row['backend']:8} {row['product']:3} {row['pass']:7}"
    if "failed" in row:
        return f"{begin} {row['failed']}"
    verdict = "met" if row["of_dense"] >= row["goal"] else "missed"
    return (
        f"{begin} {row['milliseconds']:9.3f} ms, dense {row['dense_milliseconds']:9.3f} ms: "
        f"{row['of_dense']:.2f} of dense (goal {row['goal']:.2f}, {verdict})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", action="append", help="tokens,hidden,width,experts,choices; can be repeated")
    parser.add_argument("--backend", choices=["tokamax", "ragged"], help="tokamax on a GPU, ragged elsewhere")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="append one JSON line per row")
    options = parser.parse_args()
    on_gpu = jax.default_backend() == "gpu"
    shapes = shapes_of(options.shape, GPU_SHAPES if on_gpu else CPU_SHAPES[:1])
    backend = options.backend or ("tokamax" if on_gpu else "ragged")
    for shape in shapes:
        print(f"\n{shape}, {jax.devices()[0].device_kind}")
        for row in measure_products(shape, backend, "bfloat16" if on_gpu else "float32", options.rounds):
            print(described(row))
            append_row(options.json, row)


if __name__ == "__main__":
    main()
