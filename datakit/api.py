"""Provides the commands `run`, `plan`, `status`, `ls`, `inspect`, `why` and `diff`, and the simulation of a run, as
functions that return results. Errors are raised as exceptions; no function exits the process. Each function imports
what it needs when it is called: a run needs none of the modules that answer questions or simulate, and importing them
would take a tenth of the CPU time of a driver's start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from datakit.errors import InputError
from datakit.recipe import Recipe, load_recipe
from datakit.storage import urls

if TYPE_CHECKING:
    from datakit.engine.ledger.status import StepStatus
    from datakit.engine.observe.observer import Observer
    from datakit.normalize.inspection.report import RawReport
    from datakit.pipeline.fate import Answer, Difference
    from datakit.pipeline.lineage import StepDescription
    from datakit.pipeline.overview import Overview
    from datakit.pipeline.planning import RunPlan
    from datakit.pipeline.running import RunResult
    from datakit.pipeline.simulate.clock import Cluster
    from datakit.pipeline.simulate.figures import Simulation

__all__ = ["diff", "inspect", "ls", "plan", "run", "simulate", "status", "why"]

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
    ignore_disk_space: bool = False,
    observer: Observer | None = None,
) -> RunResult:
    """Run a recipe, given as a catalog name, a file or a Recipe. Prints nothing.

    Each string in `settings` has the form of an argument of `--set`, for example "dedup.threshold=0.9". `observer`
    receives progress events. A run that probably needs more space than is free on a local disk is refused, unless
    `ignore_disk_space` is True. Raises InputError, PartialError, StepFailedError or StorageError, which are all
    subclasses of DatakitError.
    """
    from datakit.pipeline import running

    assignments = tuple(settings)
    return running.run(
        _recipe(recipe, assignments), os.fspath(root), workers=workers, ray=ray, until=until, settings=assignments,
        offline=offline, fresh=fresh, ignore_disk_space=ignore_disk_space, observer=observer,
    )  # fmt: skip


def plan(
    recipe: RecipeLike,
    root: Root = "./data",
    *,
    workers: int | None = None,
    until: str | None = None,
    settings: Iterable[str] = (),
    offline: bool = False,
) -> RunPlan:
    """Return a plan of what `run` would do with the same arguments. Writes nothing."""
    from datakit.pipeline import planning

    return planning.plan(_recipe(recipe, settings), os.fspath(root), workers=workers, until=until, offline=offline)


def simulate(
    recipe: RecipeLike,
    text_bytes: int,
    cluster: Cluster,
    *,
    until: str | None = None,
    settings: Iterable[str] = (),
    rate: float | None = None,
    corpus: Root | None = None,
) -> Simulation:
    """Simulate a run on `text_bytes` bytes of text and on machines that need not exist. No source is listed.

    rate: the price of a core-hour. corpus: a TOML file that describes the text. Raises InputError.
    """
    from datakit.pipeline.simulate.corpus import load
    from datakit.pipeline.simulate.simulation import simulate as run_simulation

    text = None if corpus is None else load(Path(corpus))
    return run_simulation(_recipe(recipe, settings), text_bytes, cluster, text, until=until, rate=rate)


def status(directory: Root) -> list[StepStatus]:
    """Return the states of the steps in or below a directory, and of the steps' tasks, in the order in which data flows
    through the steps. For a dataset's directory, the steps of its sources are included. Only reads files.
    """
    from datakit.engine.ledger.status import read_status, step_directories
    from datakit.pipeline.root_layout import flow_order, sources_of

    place = urls.absolute(os.fspath(directory))
    steps = [step for home in (place, *sources_of(place)) for step in step_directories(home)]
    found = [read_status(step) for step in sorted(steps, key=flow_order)]
    if not found:
        raise InputError(f"{place} contains no datakit step; give the directory of a step, a dataset or a root")
    return found


def ls(directory: Root = "./data") -> Overview:
    """Return the steps in a root or in the directory of a dataset or source, each with its state (such as "current" or
    "superseded").
    """
    from datakit.pipeline.overview import overview

    return overview(os.fspath(directory))


def inspect(target: Root) -> StepDescription | RawReport:
    """Return a description of a finished step or a raw source, given by its path or URL. A dataset's directory stands
    for the last step of its current run.
    """
    from datakit.pipeline import lineage

    return lineage.inspect(os.fspath(target))


def why(
    dataset: Root,
    *,
    id: str | None = None,
    source_id: str | None = None,
    cluster: bool = False,
    most: int = 20,
    report: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> Answer:
    """Return what each stage did with a document. Give either its `id` or its `source_id`, the id of its record in your
    files.

    If the document is a near duplicate, the answer also contains its text, the text of the document that it duplicates,
    and the similarity of the two; with `cluster`, it contains these for all near duplicates in the document's cluster.
    At most `most` of the documents with this id, and at most `most` pairs of texts, are returned. `report` is called
    with the number of files (or parts of files) searched so far, their total number, and a description of the search.
    """
    from datakit.pipeline import fate

    return fate.why(os.fspath(dataset), id=id, source_id=source_id, cluster=cluster, most=most, report=report)


def diff(
    first: Root,
    second: Root,
    *,
    report: Callable[[int, int, str], None] = lambda done, total, what: None,
    listed: Callable[[str, str, str, list[str]], None] | None = None,
) -> Difference:
    """Count the documents that only one of two datasets or steps has, by source and by the reason for their absence.

    `report` is called with the number of documents read so far, their total number, and the word "documents". `listed`
    is called once per batch of counted documents, with "-" (only in the first) or "+" (only in the second), the source,
    the reason, and the list of these documents' ids.
    """
    from datakit.pipeline import fate

    return fate.diff(os.fspath(first), os.fspath(second), report, listed)


def _recipe(recipe: RecipeLike, settings: Iterable[str]) -> Recipe:
    from datakit.pipeline.configuration.table_mistakes import table_mistakes

    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, table_mistakes)
    return loaded.with_overrides(settings)
