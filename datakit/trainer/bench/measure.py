"""Compiles, checks and times one case, and returns its row.

The result is first compared with an oracle in the same process: the same arrays, experts and shares, with every expert
applied to every token, on at most 256 tokens. A case that differs by more than the tolerance is not timed. Then the
function is called a few times to warm up, and each further call is timed by itself. With `trace`, three more calls are
traced, and their time is divided into computation, communication, copies and waiting for the host; communication during
computation is listed by itself.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from datakit.errors import DatakitError, UsageError
from datakit.trainer.bench.case import Case
from datakit.trainer.bench.device import Peaks, peaks, roofline
from datakit.trainer.bench.layer import (
    Arrays,
    arrays,
    layer_of,
    limited,
    order_of,
    quantized,
    stages_of,
    timed_function,
)
from datakit.trainer.bench.routing import described, sample
from datakit.trainer.loop.trace_summary import summarize
from datakit.trainer.loop.tracing import Tracing
from datakit.trainer.models.experts.experts import resolve
from datakit.trainer.models.layers import silu_gate
from datakit.trainer.models.weights import make_mesh

CHECKED_TOKENS = 256
TOLERANCE = {"float32": 1e-4, "bfloat16": 6e-2}  # of the largest entry of the output and of each gradient
TRACED = 3


@dataclass(frozen=True)
class Settings:
    """The numbers of timed calls and of calls before them, and whether calls are traced."""

    rounds: int = 20
    warmup: int = 2
    trace: bool = False


def measure(case: Case, settings: Settings) -> dict[str, Any]:
    """Return the row of a case. Raises UsageError for a case that this machine cannot run, and DatakitError for one
    that differs from the oracle.
    """
    if case.devices > len(jax.devices()):
        raise UsageError(f"{case.devices} devices are needed, but this machine has {len(jax.devices())}")
    error = difference(_small(case))
    if not error <= TOLERANCE[case.dtype]:
        raise DatakitError(f"{case.described()}: the result differs from the oracle's by {error:.1e}; it is not timed")
    with mesh_of(case):
        inputs, function = prepared(case)
        compiled = jax.jit(function).lower(*inputs).compile()
        seconds = timed(compiled, inputs, settings)
        row = _row(case, seconds, peaks(case.dtype)) | {"error": error, "backend_used": resolve(case.backend)}
        row |= _memory(compiled) | (stage_seconds(case, settings) if case.stages else {})
        return row | (_traced(compiled, inputs) if settings.trace else {})


def prepared(case: Case) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    """Return the inputs of a case and the function to time. With the queue mode "prequeue", the assignments are already
    sorted in the inputs.
    """
    expert, share = limited(case, *map(jnp.asarray, sample(case)))
    given = arrays(case, jax.random.key(0))
    if case.queue == "prequeue":
        return (given, order_of(case, expert, share), share), timed_function(case)
    return (given, expert, share), timed_function(case)


def timed(function: Callable[..., Any], inputs: tuple[Any, ...], settings: Settings) -> np.ndarray:
    """Return the seconds of each timed call."""
    seconds = []
    for number in range(settings.warmup + settings.rounds):
        started = time.perf_counter()
        jax.block_until_ready(function(*inputs))
        if number >= settings.warmup:
            seconds.append(time.perf_counter() - started)
    return np.array(seconds)


def stage_seconds(case: Case, settings: Settings) -> dict[str, float]:
    """Return the median seconds of each part of a layer that is built from grouped products."""
    expert, share = limited(case, *map(jnp.asarray, sample(case)))
    given, order = quantized(case, arrays(case, jax.random.key(0))), order_of(case, expert, share)
    stages = {name: jax.jit(stage) for name, stage in stages_of(case).items()}
    rows = stages["pack"](given["x"], order)
    middle = stages["up"](rows, given["w_in"], order)
    out = stages["down"](middle, given["w_out"], share, order)
    inputs: dict[str, tuple[Any, ...]] = {
        "pack": (given["x"], order),
        "up": (rows, given["w_in"], order),
        "down": (middle, given["w_out"], share, order),
        "combine": (out, share, order),
    }
    sort = jax.jit(lambda expert, share: order_of(case, expert, share))
    found = {"seconds_sort": float(np.median(timed(sort, (expert, share), settings)))}
    return found | {f"seconds_{name}": float(np.median(timed(stages[name], inputs[name], settings))) for name in stages}


def difference(case: Case) -> float:
    """Return the largest difference between a case and the oracle, relative to the largest entry of each result."""
    with mesh_of(case):
        inputs, function = prepared(case)
        found = jax.jit(function)(*inputs)
    expert, share = limited(case, *map(jnp.asarray, sample(case)))
    wanted = jax.jit(oracle(case))(inputs[0], expert, share)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return max(float(jnp.max(jnp.abs(a - b)) / (jnp.max(jnp.abs(b)) + 1e-30)) for a, b in pairs)


def oracle(case: Case) -> Callable[..., Any]:
    """Return the case's function with every expert applied to every token, on one device."""
    plain = Case(case.tokens, case.hidden, case.width, case.experts, case.choices, dtype=case.dtype, passes=case.passes)
    plain = dataclasses.replace(plain, shared=case.shared, quantization=case.quantization, backend="dense")

    def layer(given: Arrays, expert: Any, share: Any) -> Any:
        weight = jnp.sum((expert[..., None] == jnp.arange(case.experts)) * share[..., None], axis=1)
        ready = quantized(plain, given)
        middle = silu_gate(jnp.einsum("td,edf->tef", ready["x"], ready["w_in"]))
        routed = jnp.einsum("tei,eid,te->td", middle, ready["w_out"], weight.astype(middle.dtype)).astype(case.dtype)
        none = dataclasses.replace(plain, choices=1)
        return routed + (layer_of(none)(given, expert[:, :1], share[:, :1] * 0) if case.shared else 0)

    if case.passes == "forward":
        return layer
    return jax.value_and_grad(lambda *given: jnp.mean(layer(*given).astype(jnp.float32) ** 2))


def _small(case: Case) -> Case:
    """Return the case with few enough tokens for the oracle."""
    tokens = min(case.tokens, CHECKED_TOKENS) // case.pieces * case.pieces
    return dataclasses.replace(case, tokens=max(tokens, case.pieces))


def mesh_of(case: Case) -> AbstractContextManager[Any]:
    """Make the mesh of a case the current one; a case on one device needs none."""
    if case.devices == 1:
        return nullcontext()
    return jax.set_mesh(make_mesh(1, jax.devices()[: case.devices], case.expert_devices))


def _row(case: Case, seconds: np.ndarray, best: Peaks) -> dict[str, Any]:
    median, low, high = (float(np.percentile(seconds, share)) for share in (50, 10, 90))
    rate, least = case.flops / median / case.devices, roofline(case, best)
    expert = sample(case).expert
    kept = limited(case, *map(jnp.asarray, sample(case)))[0]
    return {
        **case.key(),
        "device": best.device,
        "jax": jax.__version__,
        "rounds": len(seconds),
        "seconds": median,
        "seconds_p10": low,
        "seconds_p90": high,
        "tokens_per_second": case.tokens / median,
        "flops": case.flops,
        "tflops_per_device": rate / 1e12,
        "percent_of_peak": 100 * rate / best.flops,
        "peak_tflops": best.flops / 1e12,
        "peak_bandwidth": best.bandwidth,
        "peaks_from": best.source,
        "roofline_seconds": least,
        "share_of_roofline": least / median,
        "dropped": float(np.mean(np.asarray(kept) == case.experts)),
        **described(expert, case.experts),
    }


def _memory(compiled: Any) -> dict[str, int]:
    analysis = compiled.memory_analysis()
    return {} if analysis is None else {"temporary_bytes": int(analysis.temp_size_in_bytes)}


def _traced(function: Callable[..., Any], inputs: tuple[Any, ...]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        tracing = Tracing(folder, (0, TRACED))
        for number in range(TRACED + 1):
            tracing.at(number)
            if number < TRACED:
                jax.block_until_ready(function(*inputs))
        found = summarize(folder)
    parts = {"compute": found.compute, "communication": found.communication, "copy": found.copy, "host": found.idle}
    parts |= {"overlapped": found.overlapped}
    return {f"share_{name}": value / found.seconds for name, value in parts.items()}
