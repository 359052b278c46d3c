"""Finds the mixture of a training run: in the table `[data]` of its run file, or in the mixture file that this table
names. The trainer and the commands `datakit mixture preview` and `datakit mixture pack` use this module, so all of them
find the same mixture. In a run file, paths are relative to the file's directory, and {root}/ at the start of a `cache`
path stands for the root.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from datakit.cache.reader import Cache, open_cache
from datakit.errors import LoaderError, RecipeError
from datakit.loader.mixture.toml_file import MixtureFile, absolute, decoded_exclusions, load_mixture_file, mixture_of
from datakit.storage import urls
from datakit.toml_config import read_toml

DATA = "data"
ROOT = "{root}/"


def load_mixture_or_run(path: str | os.PathLike[str], root: str, *, with_counts: bool) -> MixtureFile:
    """Load the mixture and the number of steps from a mixture file or a run file. with_counts: use the sequence counts
    that `datakit mixture pack` stored in the root. Raises LoaderError, RecipeError and CorruptError.
    """
    file, packing_root = Path(path).expanduser(), root if with_counts else None
    document = read_toml(file, "give a mixture file or a run file (TOML)", LoaderError)
    if DATA not in document or "components" in document:
        return mixture_of(document, file, packing_root)
    if not isinstance(document[DATA], Mapping):
        raise RecipeError(f"{file}: [{DATA}] must be a table")
    steps = document.get("steps")
    if not isinstance(steps, int) or steps < 1:
        raise RecipeError(f"{file}: steps is {steps!r}; a run file must set steps to an integer of at least 1")
    found = mixture_of_run(data_settings(document[DATA], file, root), file, packing_root)
    return replace(found, path=str(file), steps=steps, is_run=True)


def mixture_of_run(
    settings: Mapping[str, Any], file: Path, packing_root: str | None, opened: Callable[[str], Cache] = open_cache
) -> MixtureFile:
    """Make the mixture from the result of `data_settings`. Raises the errors of `load_mixture`."""
    if "mixture" in settings:
        found = load_mixture_file(absolute(str(settings["mixture"]), file), packing_root, opened)
        more = decoded_exclusions(settings.get("exclusions", []), f"{file}, [{DATA}]")
        return replace(found, mixture=replace(found.mixture, exclusions=(*found.mixture.exclusions, *more)))
    return mixture_of(settings, file, packing_root, opened)


def data_settings(table: Mapping[str, Any], file: Path, root: str) -> dict[str, Any]:
    """Return the table `[data]` of a run file without its validation sets, and with an absolute path or a URL for each
    `cache`. Raises RecipeError if the rest of the table is empty or contains settings that do not belong there.
    """
    settings = {name: value for name, value in table.items() if name != "evaluation"}
    if not settings:
        raise RecipeError(f"{file}: no data; add a [data] table with components and stages, or with `mixture`")
    if "steps" in settings:
        raise RecipeError(f"{file}, [data]: steps has no effect here; set the run's steps at the top of the file")
    others = ", ".join(sorted(set(settings) - {"mixture", "exclusions"}))
    if "mixture" in settings and others:
        raise RecipeError(
            f"{file}, [data]: {others} cannot be combined with `mixture`; move these settings to the mixture file"
        )
    components = settings.get("components")
    if isinstance(components, Mapping):
        settings["components"] = {name: _placed(entry, file, root) for name, entry in components.items()}
    return settings


def _placed(entry: Any, file: Path, root: str) -> Any:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("cache"), str):
        return entry  # invalid; the error is raised when the entry is decoded
    return {**entry, "cache": place_of(entry["cache"], file, root)}


def place_of(cache: str, file: Path, root: str) -> str:
    """Return the absolute path or the URL of a cache that a run file names."""
    if cache.startswith(ROOT):
        return urls.join(urls.absolute(root), cache.removeprefix(ROOT))
    return absolute(cache, file)
