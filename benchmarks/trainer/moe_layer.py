"""Compare one mixture-of-experts layer, forward and backward, with one that does the same work per token.

    python -m benchmarks.trainer.moe_layer                        # the standard shapes of this device
    python -m benchmarks.trainer.moe_layer --shape 4096,256,512,8,2 --backends tiles,ragged,dense --json rows.jsonl

A shape is tokens, hidden, expert width, experts, choices. Every contestant computes the gradients of its input and all
its weights. The layers include router, sort and combination. Contestants take turns in one process, so a busy machine
slows all of them; the ratio of medians is the result. Useful FLOPs are 18 x tokens x choices x hidden x width (three
products, three passes); router, sort and padding do not count. Each backend is first compared with the dense oracle on
256 tokens. Each row names its device. If the step of a backend exceeds the memory, its row has the error, not times.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JaxRuntimeError

from datakit.trainer.metrics.trackers import peak_flops
from datakit.trainer.models import layers, router
from datakit.trainer.models.experts.experts import experts, resolve

CHECKED_TOKENS = 256
TOLERANCE = {"float32": 2e-4, "bfloat16": 6e-2}


class Shape(NamedTuple):
    """Sizes of one layer."""

    tokens: int
    hidden: int
    width: int
    experts: int
    choices: int

    @property
    def useful_flops(self) -> float:
        """FLOPs of forward and backward together."""
        return 18.0 * self.tokens * self.choices * self.hidden * self.width


CPU_SHAPES = [
    Shape(4096, 256, 512, 8, 2),
    Shape(4096, 128, 256, 16, 2),
    Shape(8192, 256, 256, 32, 4),
    Shape(8192, 128, 128, 16, 2),  # a step of train_text.toml
]
GPU_SHAPES = [Shape(32768, 1024, 512, 64, 4), Shape(32768, 2048, 1408, 60, 4), Shape(32768, 2048, 2048, 64, 8)]
Step = tuple[Callable[..., Any], tuple[Any, ...]]


def arrays(shape: Shape, dtype: Any) -> tuple[Any, ...]:
    """The input, the router's matrix and the experts' two matrices."""
    keys = jax.random.split(jax.random.key(0), 4)
    sizes = (
        (shape.tokens, shape.hidden),
        (shape.hidden, shape.experts),
        (shape.experts, shape.hidden, 2 * shape.width),
        (shape.experts, shape.width, shape.hidden),
    )
    scales = (1.0, shape.hidden**-0.5, shape.hidden**-0.5, shape.width**-0.5)
    drawn = (jax.random.normal(key, size) * scale for key, size, scale in zip(keys, sizes, scales, strict=True))
    return tuple(value.astype(dtype) for value in drawn)


def moe_step(shape: Shape, dtype: Any, backend: Any) -> Step:
    """The layer with its gradients."""

    def loss(x: Any, matrix: Any, w_in: Any, w_out: Any) -> Any:
        routing = router.sigmoid_route(router.router_logits(x, matrix), jnp.zeros(shape.experts), shape.choices)
        y = experts(x, routing.expert, routing.share, w_in, w_out, "swiglu", backend)
        return jnp.mean(y.astype(jnp.float32) ** 2)

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3))), arrays(shape, dtype)


def floor_step(shape: Shape, dtype: Any) -> Step:
    """A dense feed-forward layer of the same active width with its gradients: the upper bound."""
    width, keys = shape.choices * shape.width, jax.random.split(jax.random.key(1), 3)
    x = jax.random.normal(keys[0], (shape.tokens, shape.hidden)).astype(dtype)
    w_in = (jax.random.normal(keys[1], (shape.hidden, 2 * width)) * shape.hidden**-0.5).astype(dtype)
    w_out = (jax.random.normal(keys[2], (width, shape.hidden)) * width**-0.5).astype(dtype)

    def loss(x: Any, w_in: Any, w_out: Any) -> Any:
        return jnp.mean((layers.silu_gate(x @ w_in) @ w_out).astype(jnp.float32) ** 2)

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2))), (x, w_in, w_out)


def worst_error(shape: Shape, dtype: Any, backend: Any) -> float:
    """The largest difference from the oracle, relative to each gradient's largest entry."""
    small = shape._replace(tokens=CHECKED_TOKENS)
    (step, inputs), (oracle, _) = moe_step(small, dtype, backend), moe_step(small, dtype, "dense")
    pairs = zip(jax.tree.leaves(step(*inputs)), jax.tree.leaves(oracle(*inputs)), strict=True)
    return max(float(jnp.max(jnp.abs(a - b)) / (jnp.max(jnp.abs(b)) + 1e-30)) for a, b in pairs)


def warm_up(steps: dict[str, Step]) -> tuple[dict[str, Step], dict[str, str]]:
    """Compile and run each step twice. Return the steps that fit in the memory, and the errors of the others."""
    fitting, failures = dict[str, Step](), dict[str, str]()
    for name, (step, inputs) in steps.items():
        try:
            for _ in range(2):
                jax.block_until_ready(step(*inputs))
            fitting[name] = step, inputs
        except JaxRuntimeError as error:
            failures[name] = out_of_memory(error)
    return fitting, failures


def out_of_memory(error: Exception) -> str:
    """The first line of an error about exhausted memory; any other error is raised again."""
    line = str(error).splitlines()[0]
    if "RESOURCE_EXHAUSTED" not in line:
        raise error
    return line


def take_turns(steps: dict[str, Step], rounds: int, calls: int = 1) -> dict[str, np.ndarray]:
    """Seconds per call of each warm step in each round, in which it is called `calls` times."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, (step, inputs) in steps.items():
            begun = time.perf_counter()
            result: Any = None
            for _ in range(calls):
                result = step(*inputs)
            jax.block_until_ready(result)
            seconds[name].append((time.perf_counter() - begun) / calls)
    return {name: np.array(values) for name, values in seconds.items()}


def measure(shape: Shape, backends: list[str], dtype: str, rounds: int) -> list[dict[str, Any]]:
    """Rows for the floor and for each backend; if a backend's step exceeds the memory, its row has only the error."""
    steps: dict[str, Step] = {"floor": floor_step(shape, jnp.dtype(dtype))}
    errors = {"floor": 0.0}
    for backend in backends:
        errors[backend] = worst_error(shape, jnp.dtype(dtype), backend)
        if errors[backend] > TOLERANCE[dtype]:
            raise SystemExit(f"{backend} differs from the oracle by {errors[backend]:.2e}; not timed")
        steps[backend] = moe_step(shape, jnp.dtype(dtype), backend)
    fitting, failures = warm_up(steps)
    if "floor" in failures:
        raise SystemExit(f"{shape}: the floor does not fit in the memory: {failures['floor']}")
    seconds = take_turns(fitting, rounds)
    device = jax.devices()[0].device_kind
    peak, floor = peak_flops(device), float(np.median(seconds["floor"]))
    common = {"device": device, "dtype": dtype, **shape._asdict()}
    rows = [{**common, "backend": name, "failed": failure} for name, failure in failures.items()]
    for name, values in seconds.items():
        median = float(np.median(values))
        rate = shape.useful_flops / median
        rows.append(
            {
                **common,
                "backend": name,
                "milliseconds": median * 1e3,
                "p10": float(np.quantile(values, 0.1)) * 1e3,
                "p90": float(np.quantile(values, 0.9)) * 1e3,
                "gflops_per_second": rate / 1e9,
                "percent_of_peak": 100 * rate / peak if peak else None,
                "of_floor": floor / median,
                "error": errors[name],
            }
        )
    return rows


def described(row: dict[str, Any]) -> str:
    """A row as a line of text."""
    if "failed" in row:
        return f"  {row['backend']:8} {row['failed']}"
    share = f"{row['percent_of_peak']:.1f} % of peak" if row["percent_of_peak"] else ""
    return (
        f"  {row['backend']:8} {row['milliseconds']:9.2f} ms  {row['gflops_per_second']:9.1f} useful GFLOP/s  "
        f"{row['of_floor']:.2f} of the floor  {share}"
    )


def shapes_of(texts: list[str] | None, usual: list[Shape]) -> list[Shape]:
    """Return the shapes that the command line gives, or the usual ones."""
    return [Shape(*map(int, text.split(","))) for text in texts or []] or usual


def append_row(path: Path | None, row: dict[str, Any]) -> None:
    """Append a row to a file of JSON lines, if there is one."""
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", action="append", help="tokens,hidden,width,experts,choices; can be repeated")
    parser.add_argument("--backends", help="comma-separated; by default all that suit this device")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="append one JSON line per row")
    options = parser.parse_args()
    on_cpu = jax.default_backend() == "cpu"
    shapes = shapes_of(options.shape, CPU_SHAPES if on_cpu else GPU_SHAPES)
    backends = options.backends.split(",") if options.backends else [resolve("auto"), *([] if on_cpu else ["ragged"])]
    for shape in shapes:
        print(f"\n{shape}, {jax.devices()[0].device_kind}")
        for row in measure(shape, list(dict.fromkeys(backends)), "float32" if on_cpu else "bfloat16", options.rounds):
            print(described(row))
            append_row(options.json, row)


if __name__ == "__main__":
    main()
