"""The trainer: mixture-of-experts language models in raw JAX, from a mixture of token caches to a checkpoint.

It imports nothing of the pipeline's dependencies: numpy, jax, optax, orbax (and msgspec, xxhash, TensorStore) are
enough, so a GPU machine needs no Arrow. `models/grug.py` is the template: read it, copy it, change the copy.
"""

from __future__ import annotations

import importlib.util

from datakit.errors import UsageError

NEEDED = ("jax", "optax", "orbax")


def require_jax() -> None:
    """Raises UsageError where the trainer's libraries are not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"training needs {', '.join(missing)}; pip install 'datakit[train]'")
