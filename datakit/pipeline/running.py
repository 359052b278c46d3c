"""Runs a recipe: prepares the run, lets `graph_run.py` run its steps, handles `--fresh`, and records the result.

A lease on all steps of the run, including finished ones, keeps them from `datakit gc`. To reuse a finished step, the
run reads the step's manifest once. The executor is created when the first task must run, so a second run of the same
recipe starts no worker and ends in well under a second. A run writes its events to
`<root>/<dataset>/runs/<run>/events.jsonl` if it executes a step, if it takes more than 30 seconds, or if it fails and
its dataset already exists.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from datakit.engine.ledger.ledger import driver_name
from datakit.engine.observe.event_file import FILE_NAME as EVENTS
from datakit.engine.observe.event_log import EventLog
from datakit.engine.observe.observer import Observer, RunStart
from datakit.engine.observe.run_report import RunReport
from datakit.engine.ray_backend.agreement import remove_dead_nonces
from datakit.engine.ray_backend.metrics import RayMetrics
from datakit.leases.exclusive_removal import remove_unused
from datakit.leases.lease import Lease
from datakit.leases.lease_files import USE
from datakit.leases.pins import refuse_pinned
from datakit.pipeline.annotators.model_files import require_models
from datakit.pipeline.annotators.model_servers import require_keys
from datakit.pipeline.graph import Graph, LocatedStep, build, check_workers
from datakit.pipeline.lazy_executor import LazyExecutor
from datakit.pipeline.resolve_sources import ListingOptions, local_folders
from datakit.pipeline.root_layout import last_stage, run_directory
from datakit.pipeline.run_summary import RunResult, StepResult
from datakit.pipeline.schedule.graph_run import GraphRun
from datakit.recipe import Recipe
from datakit.storage import urls
from datakit.storage.latest import Current, SourceRecords, record_latest

ANNOTATE, PASSAGES, CONSOLIDATE, TOKENIZE = "annotate", "passages", "consolidate", "tokenize"


def run(
    recipe: Recipe,
    root: str,
    *,
    workers: int | None = None,
    ray: str | None = None,
    until: str | None = None,
    settings: Sequence[str] = (),
    offline: bool = False,
    fresh: bool = False,
    ignore_disk_space: bool = False,
    observer: Observer | None = None,
) -> RunResult:
    """Run a recipe up to and including stage `until`. `settings` are assignments that have already been applied to the
    recipe; they are only recorded in the run's first event.

    With `fresh`, the dataset's own steps that have the current parameters are removed first. The steps of its sources
    are kept, because other recipes may share them. With `ignore_disk_space`, the run starts even if a local disk
    probably has too little free space. Raises InputError, PartialError, StepFailedError or StorageError.
    """
    check_workers(workers)
    root = urls.absolute(root)
    options = {"workers": workers, "ray": ray, "until": until, "settings": list(settings), "offline": offline,
               "fresh": fresh, "directory": os.getcwd()}  # fmt: skip
    start = _run_start(recipe, root, options)
    metrics = [RayMetrics()] if ray is not None else []
    with (
        RunReport(start, observer or Observer(), [EventLog(urls.parent(start.log)), *metrics]) as report,
        Lease(root, USE, f"datakit run {recipe.name}", report.note) as lease,
    ):
        graph = require_models(build(recipe, root, ListingOptions(offline=offline), until), recipe.place)
        graph = require_keys(graph, recipe.place, on_cluster=ray is not None)
        lease.hold(graph.directories())
        removed = _remove_own_steps(graph, lease, report) if fresh else []
        remove_dead_nonces(root)
        executor = LazyExecutor(workers, ray, root)
        progress = GraphRun(graph, executor, report, lease, check_disk=not ignore_disk_space)
        try:
            steps = progress.run()
        finally:
            executor.close()
            progress.tidy_up()
        progress.raise_unfinished()
        lease.require()
        unrecorded = _record_latest(urls.join(root, graph.dataset), steps, recipe)
    return RunResult(
        dataset=graph.dataset,
        root=root,
        steps=tuple(steps),
        cache=next((step.directory for step in steps if step.stage == TOKENIZE), None),
        run=report.run,
        log=report.log,
        seconds=report.seconds(),
        notes=(
            *graph.notes,
            *progress.notes,
            *(f"removed first (--fresh): {directory}" for directory in removed),
            *([unrecorded] if unrecorded else []),
        ),
    )


def _run_start(recipe: Recipe, root: str, options: dict[str, object]) -> RunStart:
    """Return a description of the run for its first event. No source has been listed at this point."""
    run = driver_name()
    log = urls.join(run_directory(root, recipe.name, run), EVENTS)
    return RunStart(run, log, recipe.name, root, recipe.place, recipe.document(), local_folders(recipe), options)


def _record_latest(dataset: str, steps: Sequence[StepResult], recipe: Recipe) -> str:
    """Record the dataset's current step, token cache, consolidate, annotate and passages steps, and the licenses of the
    recipe's sources. The current step is the run's last step that belongs to the dataset (not to a source). Return a
    message for the user if nothing could be recorded, and otherwise "".
    """
    own = [step for step in steps if step.source is None]
    if not own:
        return ""
    last = max(own, key=lambda step: last_stage(step.stage))
    cache = [step for step in own if step.stage == TOKENIZE]
    licenses = {source.name: source.license for source in recipe.sources if source.license}
    documents = [step for step in own if step.stage == CONSOLIDATE and step is not last]
    cached, published = (_current(steps[0]) if steps else None for steps in (cache, documents))
    attributes = {step.source: _current(step) for step in steps if step.stage == ANNOTATE and step.source is not None}
    read = {entry.identity for step in own for entry in step.manifest.inputs}
    searched = [step for step in own if step.stage == PASSAGES and step is not last]
    unread = next((_current(step) for step in searched if step.manifest.identity not in read), None)
    sources = SourceRecords(licenses, attributes)
    return record_latest(dataset, _current(last), cached, sources, published, passages=unread)


def _current(step: StepResult) -> Current:
    return Current(urls.name(step.directory), step.manifest.identity)


def _remove_own_steps(graph: Graph, lease: Lease, report: RunReport) -> list[str]:
    """Remove the dataset's own steps (not the shared steps of its sources), and return their directories. Raises
    UsageError if one of them is pinned, and RetentionError if another process uses one; in both cases, nothing is
    removed.
    """
    located: dict[str, LocatedStep] = {}
    for node in graph.nodes:
        located[node.label] = graph.locate(node, located)
    own = [step.directory for step in located.values() if step.node.source is None and urls.listing(step.directory)]
    refuse_pinned(graph.root, own)
    remove_unused(lease, own, f"datakit run {graph.dataset} --fresh", report.note)
    return own
