"""Decides whether a report is about a dataset (or a step), a run or a training run, and finds the steps that it covers.

The report about a dataset covers all steps from which the dataset's last step was made, whichever runs made them. The
report about a run covers the steps that the run's log names, even if the run failed or has not ended. These steps are
looked for in the root that holds the log, so a root can be moved.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from datakit.engine.observe.event_file import FILE_NAME as EVENTS
from datakit.engine.observe.event_tail import Event
from datakit.errors import UsageError
from datakit.lineage.graph import FoundStep, upstream_first, with_published
from datakit.lineage.sources import read_events
from datakit.pipeline.lineage import finished_step
from datakit.pipeline.root_layout import RUNS, flow_order
from datakit.signed_urls import split_query
from datakit.storage import urls
from datakit.storage.latest import read_latest
from datakit.storage.manifest import Manifest, find_manifest
from datakit.trainer.metrics.json_lines import FILE_NAME as METRICS

STEP_EVENTS = ("step_started", "step_ended", "step_failed")


@dataclass(frozen=True)
class RunFacts:
    """A run of a recipe, from its log. ended: None if the run is active or was killed. reused: the directories of the
    steps that had been finished before. failed: the directories of the steps that failed or ended as partial.
    """

    run: str
    recipe: str
    host: str
    started: float
    ended: float | None
    reason: str
    exit_code: int | None
    reused: frozenset[str] = field(default=frozenset(), repr=False)
    failed: frozenset[str] = field(default=frozenset(), repr=False)


@dataclass(frozen=True)
class Subject:
    """The subject of a report. kind: "dataset", "run" or "training run". steps: upstream steps first. run: the run to
    which the report is limited. manifest: of a finished training run.
    """

    kind: str
    name: str
    directory: str
    steps: tuple[FoundStep, ...]
    run: RunFacts | None = None
    manifest: Manifest | None = None

    def found(self, stage: str) -> list[FoundStep]:
        """Return the finished steps of a stage."""
        return [step for step in self.steps if step.stage == stage and step.manifest is not None]


def subject_of(target: str, readable: Callable[[str], bool] = lambda place: True) -> Subject:
    """Return the subject that a directory stands for. Upstream steps and steps of a run for which `readable` returns
    False are not read, and have no manifest. Raises UsageError if the directory is none of the three kinds.
    """
    place = urls.absolute(target)
    place = urls.parent(place) if urls.name(place) == EVENTS else place
    if urls.is_local(place) and (Path(urls.local_path(place)) / METRICS).is_file():
        return _training(place, readable)
    if urls.name(urls.parent(place)) == RUNS and urls.exists(urls.join(place, EVENTS)):
        return _run(place, readable)
    found = finished_step(place, readable) if not _is_file(place) else None
    if found is None:
        raise UsageError(
            f"{place} is neither a dataset, a step, a run (<dataset>/{RUNS}/<run>) nor a training run; `datakit ls` "
            "lists the datasets of a root"
        )
    directory, manifest, _ = found
    steps = with_published(place, upstream_first(directory, manifest, readable), readable)
    return Subject("dataset", manifest.dataset, directory, tuple(_with_attributes(place, steps, readable)))


def _with_attributes(place: str, steps: list[FoundStep], readable: Callable[[str], bool]) -> list[FoundStep]:
    """Insert a dataset's annotate steps before its last step, even if no step was made from them. Steps that are gone,
    as in a copy without `sources/`, are left out.
    """
    known, latest, more = {step.directory for step in steps}, read_latest(place), list[FoundStep]()
    for path, recorded in latest.attribute_steps() if latest is not None else ():
        directory = urls.join(urls.parent(place), path)
        manifest = find_manifest(directory) if directory not in known and readable(directory) else None
        if manifest is not None and manifest.identity == recorded.identity:
            more.append(FoundStep(directory, manifest.stage, manifest.identity, manifest))
    return [*steps[:-1], *more, steps[-1]]


def _is_file(place: str) -> bool:
    return urls.is_local(place) and os.path.isfile(urls.local_path(place)) and not split_query(place)[1]


def _training(place: str, readable: Callable[[str], bool]) -> Subject:
    manifest = find_manifest(place)
    steps = tuple(upstream_first(place, manifest, readable))[:-1] if manifest else ()
    name = manifest.dataset if manifest else urls.name(urls.parent(place))
    return Subject("training run", name, place, steps, manifest=manifest)


def _run(place: str, readable: Callable[[str], bool]) -> Subject:
    events = _milestones(place)
    first: Event = events[0] if events else {}
    root, moved_from = urls.parent(urls.parent(urls.parent(place))), _text(first, "root")
    directories: dict[str, str] = {}
    reused, failed = set[str](), set[str]()
    for event in events:
        if event["event"] in STEP_EVENTS and isinstance(event.get("directory"), str):
            directory = urls.join(root, event["directory"].removeprefix(moved_from).lstrip("/"))
            directories[directory] = str(event.get("stage", ""))
            reused |= {directory} if event.get("reused") else set()
            failed |= {directory} if event["event"] == "step_failed" else set()
    steps = tuple(_found(directory, stage, readable) for directory, stage in directories.items())
    dataset = urls.name(urls.parent(urls.parent(place)))
    ordered = tuple(sorted(steps, key=lambda step: flow_order(step.directory)))
    return Subject("run", dataset, place, ordered, _facts(place, events, reused, failed))


def _found(directory: str, stage: str, readable: Callable[[str], bool]) -> FoundStep:
    manifest = find_manifest(directory) if readable(directory) else None
    return FoundStep(directory, stage, manifest.identity if manifest else "", manifest)


def _facts(place: str, events: list[Event], reused: set[str], failed: set[str]) -> RunFacts:
    first: Event = events[0] if events else {}
    end: Event = next((event for event in events if event["event"] == "run_ended"), {})
    code = end.get("exit_code")
    return RunFacts(
        run=urls.name(place),
        recipe=_text(first, "recipe"),
        host=_text(first, "host"),
        started=first.get("time", 0.0),
        ended=end.get("time"),
        reason=_text(end, "reason"),
        exit_code=code if isinstance(code, int) else None,
        reused=frozenset(reused),
        failed=frozenset(failed),
    )


def _text(event: Event, key: str) -> str:
    """Return a text of an event; "" if the event lacks it or a damaged log holds something else."""
    found = event.get(key, "")
    return found if isinstance(found, str) else ""


def _milestones(place: str) -> list[Event]:
    """Return the events that mark the beginning and the end of a run and of its steps."""
    return [event for event in read_events(place) if event["event"] in (*STEP_EVENTS, "run_started", "run_ended")]
