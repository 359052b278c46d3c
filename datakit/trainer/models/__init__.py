"""Contains the models, one file per model, and finds them by name. To make a variant, copy a file.

`grug.py` and `olmoe.py` are models. The other modules are their shared parts: the protocol of a model file, layers,
routers and experts.
"""

from __future__ import annotations

import importlib
from typing import Any

from datakit.errors import UsageError, suggestion

BUILT_IN = ("grug", "olmoe")


def load_model(name: str) -> Any:
    """Import a built-in model by name, or your own by import path. Raises UsageError if it cannot be imported."""
    path = f"{__name__}.{name}" if name in BUILT_IN else name
    if path == name and "." not in name:
        raise UsageError(f"no model {name!r}; {suggestion(name, BUILT_IN)} (give the import path of your own model)")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise UsageError(f"model {name!r} cannot be imported: {error}") from error
