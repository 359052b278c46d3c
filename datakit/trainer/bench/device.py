"""Looks up or measures the peak speed of the devices, and computes a case's roofline: the time that its products or its
memory traffic would take at the peak.

Peaks of accelerators are from the vendors' data sheets. Those of a CPU are measured in the same run: the best of
several large products in the case's number type, and of several copies of a large array.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from datakit.trainer.bench.case import Case
from datakit.trainer.metrics.trackers import peak_flops

BANDWIDTH = {  # bytes/s of memory, by prefixes of device names
    "NVIDIA H100 PCIe": 2.0e12,
    "NVIDIA H100": 3.35e12,
    "NVIDIA H200": 4.8e12,
    "NVIDIA B200": 8.0e12,
    "NVIDIA A100": 2.0e12,
    "TPU v4": 1.2e12,
    "TPU v5p": 2.765e12,
    "TPU v5 lite": 0.82e12,
    "TPU v6": 1.64e12,
}
ROUNDS = 20


@dataclass(frozen=True)
class Peaks:
    """FLOP/s and bytes/s of one device, and where the numbers are from: "data sheet" or "measured"."""

    device: str
    flops: float
    bandwidth: float
    source: str


def peaks(dtype: str) -> Peaks:
    """Return the peaks of this machine's devices for products in `dtype`."""
    device = jax.devices()[0].device_kind
    known = [name for name in BANDWIDTH if device.startswith(name)]
    flops = peak_flops(device)
    if known and flops is not None and dtype == "bfloat16":
        return Peaks(device, flops, BANDWIDTH[max(known, key=len)], "data sheet")
    return Peaks(device, *_measured(dtype), "measured")


@cache
def _measured(dtype: str) -> tuple[float, float]:
    side, size = 1024, 1 << 24
    square, long = jnp.ones((side, side), dtype), jnp.ones(size, jnp.float32)
    product = _best(jax.jit(lambda x: x @ x), square)
    copy = _best(jax.jit(lambda x: x + 1), long)
    return 2 * side**3 / product, 8 * size / copy  # each copied number is read and written


def _best(function: Callable[[Any], Any], argument: Any) -> float:
    seconds = []
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        jax.block_until_ready(function(argument))
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def roofline(case: Case, best: Peaks) -> float:
    """Return the least seconds that a case can take on its devices: the longer of products and memory traffic.

    Counted traffic: the weights of all experts once per pass (read forward, read backward, gradient written), and the
    input, the output and, backward, both their gradients. Links between devices are not counted.
    """
    size = np.dtype(jnp.dtype(case.dtype)).itemsize
    weights = 3 * case.hidden * (case.experts * case.width + case.shared)
    tokens = case.tokens * case.hidden
    both = case.passes == "forward_backward"
    traffic = size * (weights * (3 if both else 1) + tokens * (4 if both else 2))
    return max(case.flops / best.flops, traffic / best.bandwidth) / case.devices
