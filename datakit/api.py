"""Provides the commands `run`, `plan`, `status`, `ls`, `inspect`, `why` and `diff`, and the simulation of a run, as
functions that return results. Errors are raised as exceptions; no function exits the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from datakit import pipeline
from datakit.engine.ledger.status import StepStatus, read_status, step_directories
from datakit.engine.observe.observer import Observer
from datakit.errors import InputError
from datakit.pipeline import Answer, Difference, Overview, RawReport, RunPlan, RunResult, StepDescription
from datakit.pipeline.configure import table_mistakes
from datakit.pipeline.root_layout import flow_order, sources_of
from datakit.pipeline.simulate.clock import Cluster
from datakit.pipeline.simulate.corpus import load as load_corpus
from datakit.pipeline.simulate.figures import Simulation
from datakit.pipeline.simulate.simulation import simulate as run_simulation
from datakit.recipe import Recipe, load_recipe
from datakit.storage import urls

__all__ = ["RunPlan", "RunResult", "diff", "inspect", "ls", "plan", "run", "simulate", "status", "why"]

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
    assignments = tuple(settings)
    return pipeline.run(
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
    return pipeline.plan(_recipe(recipe, settings), os.fspath(root), workers=workers, until=until, offline=offline)


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
    text = None if corpus is None else load_corpus(Path(corpus))
    return run_simulation(_recipe(recipe, settings), text_bytes, cluster, text, until=until, rate=rate)


def status(directory: Root) -> list[StepStatus]:
    """Return the states of the steps in or below a directory, and of the steps' tasks, in the order in which data flows
    through the steps. For a dataset's directory, the steps of its sources are included. Only reads files.
    """
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
    return pipeline.overview(os.fspath(directory))


def inspect(target: Root) -> StepDescription | RawReport:
    """Return a description of a finished step or a raw source, given by its path or URL. A dataset's directory stands
    for the last step of its current run.
    """
    return pipeline.inspect(os.fspath(target))


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
    return pipeline.why(os.fspath(dataset), id=id, source_id=source_id, cluster=cluster, most=most, report=report)


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
    return pipeline.diff(os.fspath(first), os.fspath(second), report, listed)


def _recipe(recipe: RecipeLike, settings: Iterable[str]) -> Recipe:
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, table_mistakes)
    return loaded.with_overrides(settings)
