"""Models: `grug.py`, `olmoe.py`, `dense.py` and `latent_moe.py` define one each; to make a variant, copy one of them. A
model is found by its built-in name, its import path or the path of its file. The other modules contain the code that
models share.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datakit.trainer.plugins import Kind, full_name, identity_of, load_plugin

KIND = Kind(
    "model",
    __name__,
    ("dense", "grug", "latent_moe", "olmoe"),
    ("Config", "weights", "initial_state", "apply", "flops_per_token"),  # see `protocol.Model`
    "models/protocol.py",
)

__all__ = ["KIND", "full_name", "identity", "load_model"]


def load_model(name: str, folder: Path | None = None) -> Any:
    """Return the module of a built-in model, or of your own by its import path or the path of its file (`mine.py`).

    folder: see `plugins.load_plugin`. Raises UsageError if there is no such model, or if it is not a model.
    """
    return load_plugin(name, KIND, folder)


def identity(name: str) -> dict[str, str]:
    """Return what names a loaded model's code in a fingerprint (see `plugins.identity_of`)."""
    return identity_of(load_model(name), KIND)
