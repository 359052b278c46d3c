"""Defines the settings of a user's annotator, and asks the function for its declaration when a recipe is checked.

The function is imported in a process of its own, so that a module that crashes, hangs or prints cannot harm the driver.
This takes about half a second for each function and is done once for each content of its file. All that the function
declares enters the fingerprint. The hash of its file does not: otherwise, a change to a comment would make all
attributes anew. Instead, a step refuses a file that has changed under an unchanged version.
"""

from __future__ import annotations

import functools
import re
import subprocess
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from datakit.engine import interpreter
from datakit.engine.user_modules import hash_of
from datakit.errors import RecipeError, suggestion
from datakit.toml_config import key

PROGRAM = "from datakit.annotate.user.describe import main; main()"
DESCRIBE_SECONDS = 120.0  # time for the import of the user's module and of what it imports
TABLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True)
class UserConfig:
    """The keys of a table [annotate.user.NAME]."""

    function: Annotated[
        str,
        key('A function of yours, "package.module:function", that is declared as an annotator.', "mine:exclamations"),
    ]
    parameters: Annotated[
        dict[str, Any], key("Values for the function's arguments, in place of their defaults.", {"mark": "?"})
    ] = field(default_factory=dict)  # fmt: skip

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.]+:\w+", self.function):
            raise ValueError(f"function {self.function!r} must have the form package.module:function")


class Description(msgspec.Struct, frozen=True):
    """The declaration of a function as plain data. schema: the columns that it writes, as text."""

    version: int
    columns: tuple[str, ...]
    schema: str
    sparse: bool
    parameters: dict[str, Any]


class Refusal(msgspec.Struct, frozen=True):
    """The reason why a function cannot be described."""

    reason: str


@dataclass(frozen=True)
class UserSettings:
    """All settings of a user's annotator, as a task gets them. source: the hash of the function's file. folder: the
    folder of the recipe's file, or "".
    """

    name: str
    function: str
    version: int
    columns: tuple[str, ...]
    schema: str
    sparse: bool
    parameters: dict[str, Any]
    source: str = ""
    folder: str = ""


def separated(config: UserConfig, name: str, place: str, folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings that enter the fingerprint, with all that the function declares, and those that do not.
    place: the table in the recipe, for messages. folder: the folder of the recipe's file. Raises RecipeError.
    """
    source = hash_of(config.function, folder)
    description = _described(config.function, folder, source)
    if isinstance(description, Refusal):
        raise RecipeError(f"{place}: {description.reason}")
    for one, value in config.parameters.items():
        if one not in description.parameters:
            known = suggestion(one, description.parameters) if description.parameters else "it has no parameters"
            raise RecipeError(f"{place}: {config.function} has no parameter {one!r}; {known}")
        if _kind(value) != _kind(description.parameters[one]):
            kind = _kind(description.parameters[one])
            raise RecipeError(f"{place}: parameter {one!r} must be a {kind}, like its default, not a {_kind(value)}")
    content = {
        "name": name, "function": config.function, "version": description.version,
        "columns": [*description.columns], "schema": description.schema, "sparse": description.sparse,
        "parameters": {**description.parameters, **config.parameters},
    }  # fmt: skip
    return content, {"source": source, "folder": folder}


def _kind(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "text", list: "list", dict: "table"}
    return names.get(type(value), type(value).__name__)


@functools.lru_cache(maxsize=256)
def _described(function: str, folder: str, source: str) -> Description | Refusal:
    """Return the declaration of a function. source: the hash of its file, so that a changed file is imported again."""
    program = interpreter.command(PROGRAM, function, folder)
    try:
        done = subprocess.run(
            program, stdin=subprocess.DEVNULL, capture_output=True, env=interpreter.environment(),
            timeout=DESCRIBE_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Refusal(f"the import of {function} has not ended after {DESCRIBE_SECONDS:.0f} s; shorten it")
    try:
        return msgspec.json.decode(done.stdout, type=Description)
    except (msgspec.DecodeError, msgspec.ValidationError):
        pass
    try:
        return msgspec.json.decode(done.stdout, type=Refusal)
    except (msgspec.DecodeError, msgspec.ValidationError):
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return Refusal(f"the import of {function} ended its process ({ended}); correct its module")
