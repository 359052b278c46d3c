"""Imports a user's annotator, and writes its declaration to standard output as JSON: the program of the process that
`config.py` starts. What the user's module prints goes to standard error.
"""

from __future__ import annotations

import os
import sys

import msgspec

from datakit.annotate.user.config import Description, Refusal
from datakit.annotate.user.declaration import DECLARED, Declaration
from datakit.engine.user_modules import loaded, look_beside
from datakit.errors import DatakitError, RecipeError

DECORATE = "decorate it with @datakit.annotator(version=1, writes={...}) (docs/annotate/user.md)"


def declared(function: str) -> Declaration:
    """Import a function and return its declaration. Raises RecipeError if there is none. Compiled files are not
    written: Python would use them for a source that was changed within a second.
    """
    module = function.partition(":")[0].partition(".")[0]
    remedy = f"put {module}.py beside the recipe, or add its folder to PYTHONPATH"
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        found = getattr(loaded(function, f"annotator {function!r}", remedy, RecipeError), DECLARED, None)
    finally:
        sys.dont_write_bytecode = before
    if not isinstance(found, Declaration):
        raise RecipeError(f"{function} is not declared as an annotator; {DECORATE}")
    return found


def described(declaration: Declaration) -> Description:
    """Return a declaration as plain data."""
    one = declaration
    schema = ", ".join(f"{field.name}: {field.type}" for field in one.schema)
    return Description(one.version, one.columns, schema, one.sparse, one.parameters)


def main() -> None:
    """Describe the function named by the first argument; the second one is a folder to search for its module, or ""."""
    answer = os.dup(1)
    os.dup2(2, 1)
    function, folder = sys.argv[1:]
    if folder:
        look_beside(folder)
    try:
        found: Description | Refusal = described(declared(function))
    except DatakitError as error:
        found = Refusal(str(error))
    os.write(answer, msgspec.json.encode(found))
    os._exit(0)  # threads or exit handlers of the module must not keep the driver waiting
