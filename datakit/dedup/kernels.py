"""Every compiled kernel of dedup, made ready in one place: a preload of the stages, so no task compiles."""

from __future__ import annotations

from datakit.dedup import comparison, components, shingles, signature


def warm() -> None:
    """Load the kernels from numba's cache on disk; compile them (some ten seconds) where they are not there yet."""
    shingles.warm()
    signature.warm()
    components.warm()
    comparison.warm()
