"""Times a fixed load, so that measured times can be divided by the time that the load takes.

The same work takes more CPU seconds on a slower processor, and also on a busy one, because neighbors share its caches,
its memory and its cores. The load is slowed down in the same way: it hashes, compresses, sorts and runs Python code, as
datakit does, on data that is always the same. By definition, the load takes REFERENCE_SECONDS *calibrated seconds* on
every machine. A ferry times the load before and after each stage, and uses the mean of both.

Cost: 0.6 s of CPU time on a 2024 server, and 40 MB of memory.
"""

from __future__ import annotations

import time

import msgspec
import numpy as np
import xxhash
import zstandard

from datakit.text.hash_mixing import mix

REFERENCE_SECONDS = 1.0
NUMBERS = 1 << 20
ROUNDS = 4
PYTHON_LOOPS = 250_000


class Calibration(msgspec.Struct, frozen=True):
    """The time that the load took, as CPU seconds and wall-clock seconds."""

    cpu_seconds: float
    wall_seconds: float


def calibrate() -> Calibration:
    """Run the load once."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(ROUNDS):
        _load()
    return Calibration(time.process_time() - cpu, time.perf_counter() - wall)


def mean(first: Calibration, second: Calibration) -> Calibration:
    """Return the mean of two calibrations, relative to REFERENCE_SECONDS: the factors by which to divide times."""
    both = 2 * REFERENCE_SECONDS
    return Calibration(
        (first.cpu_seconds + second.cpu_seconds) / both, (first.wall_seconds + second.wall_seconds) / both
    )


def _load() -> str:
    numbers = mix(np.arange(NUMBERS, dtype=np.uint64))
    ordered = np.sort(numbers)
    text = (numbers & np.uint64(0x0F0F)).tobytes()
    packed = zstandard.ZstdCompressor(level=3).compress(text)
    hashed = xxhash.xxh3_128(text)
    hashed.update(ordered.tobytes() + packed)
    total = 0
    for number in range(PYTHON_LOOPS):
        total = (total * 31 + number) & 0xFFFFFFFF
    hashed.update(total.to_bytes(4, "little"))
    return hashed.hexdigest()
