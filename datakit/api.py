"""Provides the commands as functions, which return what the commands print and raise errors instead of exiting."""

from __future__ import annotations

import os
from collections.abc import Iterable

from datakit import pipeline
from datakit.engine.ledger.status import StepStatus, read_status, step_directories
from datakit.engine.observe.observer import Observer
from datakit.errors import InputError
from datakit.pipeline import RawReport, RunPlan, RunResult, StepDescription
from datakit.recipe import Recipe, load_recipe
from datakit.storage import urls

__all__ = ["RunPlan", "RunResult", "inspect", "plan", "run", "status"]

RecipeLike = str | os.PathLike[str] | Recipe
Root = str | os.PathLike[str]


def run(
    recipe: RecipeLike,
    root: Root = "./data",
    *,
    workers: int | None = None,
    ray: str | None = None,
    until: str | None = None,
    settings: Iterable[str] = (),
    offline: bool = False,
    fresh: bool = False,
    observer: Observer | None = None,
) -> RunResult:
    """Run a recipe (a name, a file or a Recipe); `settings` are written as for `--set`. Prints nothing by itself.

    An `observer` receives the progress. Raises InputError, PartialError, StepFailedError or StorageError, all
    DatakitErrors.
    """
    return pipeline.run(
        _recipe(recipe, settings),
        os.fspath(root),
        workers=workers,
        ray=ray,
        until=until,
        offline=offline,
        fresh=fresh,
        observer=observer,
    )


def plan(
    recipe: RecipeLike,
    root: Root = "./data",
    *,
    workers: int | None = None,
    until: str | None = None,
    settings: Iterable[str] = (),
    offline: bool = False,
) -> RunPlan:
    """Plan what `run` with the same arguments would do. Writes nothing."""
    return pipeline.plan(_recipe(recipe, settings), os.fspath(root), workers=workers, until=until, offline=offline)


def status(directory: Root) -> list[StepStatus]:
    """Read the state of every task of every step in or below a directory, using its files only."""
    place = urls.absolute(os.fspath(directory))
    found = [read_status(step) for step in step_directories(place)]
    if not found:
        raise InputError(f"{place} contains no datakit step; give the directory of a step, a dataset or a root")
    return found


def inspect(target: Root) -> StepDescription | RawReport:
    """Describe a finished step (given by its directory, manifest or dataset directory) or a raw source."""
    return pipeline.inspect(os.fspath(target))


def _recipe(recipe: RecipeLike, settings: Iterable[str]) -> Recipe:
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    return loaded.with_overrides(settings)
