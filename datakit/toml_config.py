"""TOML files as dataclasses, strictly: recipes, mixtures and training runs are read here.

A key that nobody knows is an error with the nearest valid one, never ignored: a misspelt threshold must not become a
default. Errors name the file or the table, the key, and what was expected; `error` is the class that says whose file it
is. Costs the read of the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from datakit.errors import InputError, RecipeError, suggestion

T = TypeVar("T")


def read_toml(path: Path, advice: str, error: type[InputError] = RecipeError) -> dict[str, Any]:
    """The document in a file; `advice` is what to give where there is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as problem:
        raise error(f"{path} is not there; {advice}") from problem
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise error(f"{path} is not UTF-8 text (byte {problem.start}), as TOML files are; {advice}") from problem
    except tomllib.TOMLDecodeError as problem:
        raise error(f"{path} is not valid TOML: {problem}") from problem


def toml_value(text: str) -> Any:
    """What a shell user means by `0.9`, `["a", "b"]` or a bare word, which is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def decoded(table: Any, kind: type[T], place: str, error: type[InputError] = RecipeError) -> T:
    """A table as the dataclass `kind`, which has all of its keys."""
    if not isinstance(table, Mapping):
        raise error(f"{place} must be a table")
    check_keys(table, names_of(kind), place, error)
    return convert(table, kind, place, error)


def names_of(kind: type) -> list[str]:
    """The fields of a dataclass."""
    return [entry.name for entry in fields(kind)]


def check_keys(
    table: Mapping[str, Any], known: Iterable[str], place: str, error: type[InputError] = RecipeError
) -> None:
    """Raises `error` for the first key that is not among `known`, with the nearest of them."""
    names = list(known)
    for key in table:
        if key not in names:
            raise error(f"{place}: unknown key {key!r}; {suggestion(key, names)}")


def convert(table: Mapping[str, Any], kind: type[T], place: str, error: type[InputError] = RecipeError) -> T:
    """A table as a dataclass, strictly typed. Raises `error` that names the key."""
    for entry in fields(kind):  # pyright: ignore[reportArgumentType] - every kind here is a dataclass
        if entry.default is MISSING and entry.default_factory is MISSING and entry.name not in table:
            raise error(f"{place}: {entry.name!r} is missing")
    try:
        return msgspec.convert(table, kind)
    except error as problem:
        raise error(f"{place}: {problem}") from problem
    except msgspec.ValidationError as problem:
        reason, _, where = str(problem).partition(" - at ")
        key = where.strip("`").removeprefix("$").removeprefix(".")
        raise error(f"{place}: {key + ': ' if key else ''}{reason}") from problem
