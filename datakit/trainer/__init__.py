"""Trains mixture-of-experts language models in raw JAX, from a mixture of token caches to a checkpoint.

The trainer needs none of the pipeline's dependencies: numpy, jax, optax, orbax, msgspec, xxhash and TensorStore are
enough, so a GPU machine does not need Arrow. `models/grug.py` is the template to copy.
"""

from __future__ import annotations

import importlib.util

from datakit.errors import UsageError

NEEDED = ("jax", "optax", "orbax")


def require_jax() -> None:
    """Raise UsageError if a library that the trainer needs is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"training needs {', '.join(missing)}; pip install 'datakit[train]'")
