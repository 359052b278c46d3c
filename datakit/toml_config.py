"""Reads TOML files (recipes, mixtures, training runs), parses `key=value` assignments, and composes errors about
unknown keys. Tables are decoded strictly into dataclasses. An unknown key causes an error that suggests the nearest
valid key, so a misspelled threshold is never silently ignored. Each error names the file or table, the key and what was
expected. Its class is the one that the caller passes as `error`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from datakit.errors import InputError, RecipeError, UnreadableError, UsageError, suggestion
from datakit.regular_files import open_regular

T = TypeVar("T")


def key(meaning: str, example: Any, choices: Sequence[str] = ()) -> msgspec.Meta:
    """Return the metadata of a key, which `datakit recipe keys` displays. choices: the permitted values; empty if any
    value of the key's type is permitted.
    """
    return msgspec.Meta(
        description=meaning, examples=[example], extra_json_schema={"enum": [*choices]} if choices else {}
    )


def load_toml(
    name_or_path: str | os.PathLike[str], folder: Path, missing: str, advice: str, assignments: Iterable[str]
) -> tuple[Path, dict[str, Any]]:
    """Find a TOML file; return its path, and its content after applying assignments such as `model.hidden=64`.

    missing, advice: see `find_toml` and `read_toml`. An assigned value that is not valid TOML is taken as a string.
    Raises RecipeError for a file that cannot be read, and UsageError for an unknown name or an invalid assignment.
    """
    path = find_toml(name_or_path, folder, missing, UsageError)
    return path, assigned(read_toml(path, advice), assignments)


def assigned(document: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Apply assignments such as `model.hidden=64` to a document, which is changed and returned. Raises UsageError."""
    for assignment in assignments:
        dotted, equals, value = assignment.partition("=")
        keys = [part.strip() for part in dotted.split(".")]
        if not equals or not keys[-1]:
            raise UsageError(f"{assignment!r} does not have the form key=value, for example model.hidden=64")
        assign(document, keys, value, repr(assignment), UsageError)
    return document


def find_toml(name_or_path: str | os.PathLike[str], folder: Path, missing: str, error: type[InputError]) -> Path:
    """Return the given path or, for a name, the path of the TOML file with this name in `folder`. Raises `error` for an
    unknown name; `missing` is the template of the message and contains `{}` or `{!r}` for the name.
    """
    name = os.fspath(name_or_path)
    path = Path(name).expanduser()
    if name.endswith(".toml") or os.path.isfile(path):  # isfile raises no error, even for an overlong name
        return path
    names = [entry.stem for entry in folder.glob("*.toml")]
    if name not in names:
        raise error(f"{missing.format(name)}; {suggestion(name, names)}")
    return folder / f"{name}.toml"


def read_toml(path: Path, advice: str, error: type[InputError] = RecipeError) -> dict[str, Any]:
    """Read a TOML file. If it does not exist or is not UTF-8, the error message ends with `advice`."""
    try:
        with open_regular(str(path)) as file:
            return tomllib.loads(file.read().decode())
    except FileNotFoundError as problem:
        raise error(f"{path} does not exist; {advice}") from problem
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror}") from problem
    except UnreadableError as problem:
        raise error(str(problem)) from problem
    except UnicodeDecodeError as problem:
        raise error(f"{path} is not UTF-8 text (byte {problem.start}), as TOML requires; {advice}") from problem
    except RecursionError as problem:
        raise error(f"{path} cannot be read: its values are nested too deeply") from problem
    except ValueError as problem:  # invalid TOML, or a number with thousands of digits
        raise error(f"{path} is not valid TOML: {problem}") from problem


def check_idle(table: str, settings: Any, idle: Iterable[Mapping[str, str]]) -> None:
    """Raise UsageError for a setting that has no effect and yet differs from its default.

    Each mapping in `idle` has the names of such settings as keys and, as values, the circumstances in which they have
    no effect, e.g. {"decay": "unless the schedule is trapezoid"}.
    """
    defaults = {one.name: one.default for one in fields(settings)}
    for name, circumstance in (pair for group in idle for pair in group.items()):
        value = getattr(settings, name)
        if value != defaults[name]:
            raise UsageError(f"{table}.{name} = {value!r} has no effect {circumstance}; remove this setting")


def assign(table: dict[str, Any], keys: Sequence[str], text: str, place: str, error: type[InputError]) -> None:
    """Parse `text` as a value, and assign it to the key at the path `keys` in `table`. Raises `error` if a key on the
    path is not a table.
    """
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise error(f"{place}: {key!r} is a value, not a table")
    table[keys[-1]] = toml_value(text.strip())


def toml_value(text: str) -> Any:
    """Parse a value that a user typed: as TOML (e.g. `0.9` or `["a", "b"]`) if possible, otherwise as a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def decoded(
    table: Any, kind: type[T], place: str, error: type[InputError] = RecipeError, other_keys: Iterable[str] = ()
) -> T:
    """Decode a table into the dataclass `kind`. The error for an unknown key may also suggest one of `other_keys`:
    valid keys that the caller has already taken out of the table.
    """
    refuse(mistakes(table, kind, place, error, other_keys), error)
    return msgspec.convert(table, kind)


def mistakes(
    table: Any, kind: type, place: str, error: type[InputError] = RecipeError, other_keys: Iterable[str] = ()
) -> list[str]:
    """Return a message for each mistake in a table: unknown and missing keys, and values of the wrong type. If there is
    no such mistake but the dataclass's own checks fail, return the message of the first one that fails.
    """
    if not isinstance(table, Mapping):
        return [f"{place} must be a table"]
    found = unknown_keys(table, names_of(kind), place, other_keys)
    found += _value_mistakes(table, kind, place)
    if not found:
        try:
            msgspec.convert(table, kind)
        except (error, msgspec.ValidationError) as problem:
            found.append(f"{place}: {_reason('', problem)}")
    return found


def refuse(messages: Iterable[str], error: type[InputError] = RecipeError) -> None:
    """Raise one `error` with all these messages. If there are none, return."""
    found = list(messages)
    if found:
        raise error(found[0] if len(found) == 1 else "\n  ".join([f"{len(found)} mistakes:", *found]))


def names_of(kind: type) -> list[str]:
    """Return the names of a dataclass's fields."""
    return [entry.name for entry in fields(kind)]


def check_keys(
    table: Mapping[str, Any],
    known: Iterable[str],
    place: str,
    error: type[InputError] = RecipeError,
    other_keys: Iterable[str] = (),
) -> None:
    """Raise `error` if a table has keys that are not in `known`. The message suggests the nearest keys in `known` or
    `other_keys`.
    """
    refuse(unknown_keys(table, known, place, other_keys), error)


def unknown_keys(
    table: Mapping[str, Any], known: Iterable[str], place: str, other_keys: Iterable[str] = ()
) -> list[str]:
    """Return a message for each key that is not in `known`. The message suggests the nearest key in `known` or
    `other_keys`.
    """
    names = list(known)
    near = [*names, *other_keys]
    return [f"{place}: unknown key {name!r}; {suggestion(name, near)}" for name in table if name not in names]


def convert(table: Mapping[str, Any], kind: type[T], place: str, error: type[InputError] = RecipeError) -> T:
    """Convert a table to a dataclass, with strict types. Raises `error`, which names the key, if a key is missing or
    its value has the wrong type.
    """
    refuse(_value_mistakes(table, kind, place), error)
    try:
        return msgspec.convert(table, kind)
    except (error, msgspec.ValidationError) as problem:
        raise error(f"{place}: {_reason('', problem)}") from problem


@cache
def _types_of(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields. Evaluating the annotations of a stage's settings takes 1 to 2 ms, and a
    run checks the settings of every source.
    """
    return get_type_hints(kind)


def _value_mistakes(table: Mapping[str, Any], kind: type, place: str) -> list[str]:
    """Return a message for each key of the dataclass that is missing or has a value of the wrong type."""
    found, hints = [], _types_of(kind)
    for entry in fields(kind):
        if entry.name in table:
            try:
                msgspec.convert(table[entry.name], hints[entry.name])
            except (InputError, msgspec.ValidationError) as problem:
                found.append(f"{place}: {_reason(entry.name, problem)}")
        elif entry.default is MISSING and entry.default_factory is MISSING:
            found.append(f"{place}: {entry.name!r} is missing")
    return found


def _reason(name: str, problem: Exception) -> str:
    reason, _, where = str(problem).partition(" - at ")
    key = (name + where.strip("`").removeprefix("$")).removeprefix(".")
    return f"{key + ': ' if key else ''}{reason}"
