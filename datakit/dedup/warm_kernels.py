"""Loads or compiles the kernels of dedup before the tasks start; signatures and dedup use this module as a preload. The
kernels of `clusters/node_tables.py`, which only large inputs need, have a separate preload.
"""

from __future__ import annotations

from datakit.dedup.clusters import components
from datakit.dedup.minhash import signatures
from datakit.dedup.verification import kernels, run_kernels
from datakit.text import shingles
from datakit.text.compilation import compiled_beside


def warm() -> None:
    """Load the kernels from numba's disk cache, or compile them, which takes about six seconds on two cores."""
    with compiled_beside(run_kernels.warm, kernels.verify_documents):
        shingles.warm()
        signatures.warm()
        components.warm()
    run_kernels.warm()
