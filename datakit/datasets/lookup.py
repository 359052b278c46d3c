"""Finds the entries of the catalog: TOML files in the folders beside this module, one folder per kind of text."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from datakit.datasets.entry import Entry, parse_entry
from datakit.errors import RecipeError, suggestion
from datakit.toml_config import read_toml

FOLDER = Path(__file__).parent
GROUPS = ("web", "mixtures", "code", "papers", "reference", "math", "evaluation")  # in the order of the list


@cache
def _files() -> dict[str, Path]:
    return {path.stem: path for group in GROUPS for path in sorted((FOLDER / group).glob("*.toml"))}


def dataset_names() -> list[str]:
    """Return the names of all entries, by group."""
    return list(_files())


@cache
def dataset(name: str) -> Entry:
    """Return the entry with this name. Raises RecipeError, which suggests a name, if there is none."""
    path = _files().get(name)
    if path is None:
        raise RecipeError(f"the catalog has no dataset {name!r}; {suggestion(name, dataset_names())}")
    return parse_entry(read_toml(path, "reinstall datakit"), name, path.parent.name, str(path))
