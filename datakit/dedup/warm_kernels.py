"""Compiles all kernels of dedup, as a preload of its stages, so that no task has to."""

from __future__ import annotations

from datakit.dedup.clusters import components
from datakit.dedup.minhash import signatures
from datakit.dedup.verification import kernels
from datakit.text import shingles


def warm() -> None:
    """Load the kernels from numba's disk cache, or compile them (about ten seconds)."""
    shingles.warm()
    signatures.warm()
    components.warm()
    kernels.warm()
