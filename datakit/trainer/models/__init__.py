"""Imports a model by its built-in name or its import path, and refuses modules that do not define everything a
model needs. `grug.py` and `olmoe.py` define models; to make a variant, copy one of them. The other modules contain the
code that models share.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from datakit.errors import UsageError, suggestion

BUILT_IN = ("grug", "olmoe")
NEEDED = ("Config", "weights", "initial_state", "apply", "flops_per_token")  # see `protocol.Model`


def load_model(name: str, folder: Path | None = None) -> Any:
    """Import a built-in model by name, or your own by import path; modules in `folder` can be imported too.

    Raises UsageError if there is no such module, or if it is not a model.
    """
    path = f"{__name__}.{name}" if name in BUILT_IN else name
    if folder is not None and path == name and str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that no installed module is hidden
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise UsageError(f"model {name!r} cannot be imported: {error}") from error
        own = f"put {name}.py into {folder}, or give its import path" if folder else "give its import path"
        raise UsageError(f"no model {name!r}; {suggestion(name, BUILT_IN)} (for your own model, {own})") from error
    missing = [needed for needed in NEEDED if not hasattr(module, needed)]
    if missing:
        raise UsageError(
            f"model {name!r}: {module.__file__} does not define {', '.join(missing)}; see models/protocol.py"
        )
    return module
