"""Every compiled kernel of dedup, made ready in one place: a preload of the stages, so no task compiles."""

from __future__ import annotations

from datakit.dedup.clusters import components
from datakit.dedup.minhash import signatures
from datakit.dedup.verification import kernels
from datakit.text import shingles


def warm() -> None:
    """Load the kernels from numba's cache on disk; compile them (some ten seconds) where they are not there yet."""
    shingles.warm()
    signatures.warm()
    components.warm()
    kernels.warm()
