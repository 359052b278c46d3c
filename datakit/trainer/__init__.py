"""Trains mixture-of-experts language models in raw JAX on mixtures of token caches. The trainer needs only numpy, jax,
optax, orbax, msgspec, xxhash and TensorStore (its commands also need cyclopts and rich). A machine that only trains
does not need the pipeline's other dependencies, such as Arrow. To write your own model, copy `models/grug.py`.
"""

from __future__ import annotations

import importlib.util

from datakit.errors import UsageError

NEEDED = ("jax", "optax", "orbax")

STAGE = "train"  # the directory of a run is called train-<fingerprint>


def require_jax() -> None:
    """Raise UsageError if a library that the trainer needs is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"training needs {', '.join(missing)}; run pip install '.[train]' in datakit's checkout")
