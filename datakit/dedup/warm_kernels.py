"""Loads or compiles all kernels of dedup before the tasks start; the stages of dedup use this module as a preload."""

from __future__ import annotations

from datakit.dedup.clusters import components, node_tables
from datakit.dedup.minhash import signatures
from datakit.dedup.verification import run_kernels
from datakit.text import shingles


def warm() -> None:
    """Load all kernels from numba's disk cache, or compile them, which takes about ten seconds."""
    shingles.warm()
    signatures.warm()
    components.warm()
    node_tables.warm()
    run_kernels.warm()
