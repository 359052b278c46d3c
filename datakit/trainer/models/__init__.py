"""Imports a model by its built-in name or its import path. Each model is one file; to make a variant, copy the file.
`grug.py` and `olmoe.py` define models, and the other modules hold what the models share.
"""

from __future__ import annotations

import importlib
from typing import Any

from datakit.errors import UsageError, suggestion

BUILT_IN = ("grug", "olmoe")


def load_model(name: str) -> Any:
    """Import a built-in model by name, or your own model by import path. Raises UsageError if it is not found."""
    path = f"{__name__}.{name}" if name in BUILT_IN else name
    if path == name and "." not in name:
        raise UsageError(f"no model {name!r}; {suggestion(name, BUILT_IN)} (for your own model, give its import path)")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise UsageError(f"model {name!r} cannot be imported: {error}") from error
