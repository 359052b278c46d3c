"""Imports a user's own code (a transform, a tokenizer); if a module is missing, the error lists the folders searched.

Python's import path is searched first, then the folder of the recipe's file. Because this folder comes last, none of
its files can take the place of an installed module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import xxhash

from datakit.engine.arrow_without_pandas import find_pandas_again
from datakit.engine.task import Preload, resolve
from datakit.engine.user_code import describe, note_user_code
from datakit.errors import DatakitError, suggestion

OWN_PACKAGE = "datakit."
CODE_FOLDER = "code_folder"  # key in a step's `operations`; its value is the folder of the recipe's file


def beside(folder: str) -> tuple[Preload, ...]:
    """Return a tuple of the preload that lets tasks import modules from `folder`, or () if `folder` is ""."""
    return (Preload(__name__, f"{__name__}:look_beside", (folder,)),) if folder else ()


def look_beside(folder: str) -> None:
    """Append a folder to this process's import path."""
    if folder not in sys.path:
        sys.path.append(folder)


def loaded(function: str, what: str, remedy: str, error_type: type[DatakitError]) -> Callable[..., Any]:
    """Import the object named `package.module:name`. If this fails, raises `error_type` with the reason.

    what: a description for messages, such as "transform 'my_filters:keep'". remedy: what to do if there is no such
    module.
    """
    if not function.startswith(OWN_PACKAGE):
        note_user_code()
        find_pandas_again()  # the user's code may exchange pandas objects with Arrow
    try:
        return resolve(function)
    except DatakitError:
        raise
    except Exception as error:
        raise error_type(f"{what} cannot be imported{_reason(function, error, remedy)}") from error


def _reason(function: str, error: Exception, remedy: str) -> str:
    module, _, name = function.partition(":")
    missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{module}.".startswith(f"{missing}."):
        places = "\n  ".join(path for path in dict.fromkeys(sys.path) if path)
        return f": there is no module {missing!r} in\n  {places}\n{remedy}"
    found = sys.modules.get(module)
    if isinstance(error, AttributeError) and found is not None and not hasattr(found, name):
        functions = [known for known, value in vars(found).items() if callable(value) and not known.startswith("_")]
        return f": {getattr(found, '__file__', module)} has no function {name!r}; {suggestion(name, functions)}"
    names = {value for value in (missing, getattr(error, "name_from", None)) if isinstance(value, str)}
    return f"\n{describe(error, names)}"


def hash_of(function: str, folder: str) -> str:
    """Return the hash of the file that defines the object named `package.module:name`; "" if there is no such file or
    the object belongs to datakit. Imports nothing.
    """
    if function.startswith("datakit."):
        return ""
    spec: ModuleSpec | None = None
    path: list[str] | None = [*sys.path, *([folder] if folder else [])]
    name = ""
    for part in function.partition(":")[0].split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, path) if path else None
        path = list(spec.submodule_search_locations or ()) if spec is not None else None
    origin = Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None
    try:
        return xxhash.xxh3_128_hexdigest(origin.read_bytes()) if origin is not None else ""
    except OSError:
        return ""
