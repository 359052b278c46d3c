"""Lists the steps of a root or a dataset, and decides which are superseded, that is, not used by any current step.

The current steps are those that `latest.json` names for each dataset, and all steps from which these were made. In a
dataset without this file, the finished step of the last stage and the finished cache are used instead; if there are
several of either, the dataset is undecided. A packing step is current if the cache whose sequences it counts is
current. Manifests are read one at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from datakit.errors import CorruptError, InputError, NewerFormatError, NotFoundError, UsageError
from datakit.pipeline.graph import READS
from datakit.pipeline.lineage import finished_step
from datakit.pipeline.root_layout import CONTRACT, SOURCES, stage_order, steps_in
from datakit.storage import urls
from datakit.storage.latest import (
    CACHE_STAGE,
    current_attributes,
    current_cache,
    current_documents,
    current_passages,
    read_latest,
)
from datakit.storage.latest import FILE_NAME as LATEST
from datakit.storage.manifest import FILE_NAME, Totals, find_manifest

CURRENT, SUPERSEDED, UNFINISHED, UNDECIDED = "current", "superseded", "unfinished", "undecided"
NEWER = "newer"  # a newer version of datakit finished the step


@dataclass(frozen=True)
class ListedStep:
    """A step. dataset: the name of its recipe or source. written: the time at which the step ended, in seconds since
    1970; None if the step is unfinished.

    state: "current", "superseded", "unfinished", "newer" (made by a newer version, and not current), or "undecided" if
    the dataset's current steps are unknown.
    """

    directory: str
    dataset: str
    stage: str
    state: str
    written: float | None
    totals: Totals | None
    parameters: dict[str, Any]
    inputs: tuple[str, ...] = ()

    @property
    def home(self) -> str:
        """The directory of the dataset or source to which the step belongs."""
        return urls.parent(self.directory)


@dataclass(frozen=True)
class Overview:
    """The steps below a directory, sorted by dataset and stage. problems: for each undecided dataset, the reason why it
    is undecided.
    """

    directory: str
    steps: tuple[ListedStep, ...]
    problems: tuple[str, ...]


def overview(directory: str, readable: Callable[[str], bool] = lambda place: True) -> Overview:
    """List the steps in a root, or those of a dataset or a source. Raises InputError if there are none.

    Directories, steps and records of current steps for which `readable` returns False are not read. Such steps are
    left out, and their datasets are undecided.
    """
    place = urls.absolute(directory)
    root = _root_of(place, readable)
    every = steps_in(root, readable)
    steps = {step: _read(step) for step in every if readable(step)}
    homes = dict.fromkeys(map(urls.parent, steps))
    closed = {urls.parent(step) for step in every if step not in steps}
    closed |= {home for home in homes if not (readable(home) and readable(urls.join(home, LATEST)))}
    current, problems = _current(steps, closed, readable)
    found = [
        replace(one, state=_state(one, steps, current, problems)) for one in steps.values() if place in (root, one.home)
    ]
    if not found:
        raise InputError(f"{place} contains no datakit step; give the directory of a root or a dataset")
    ordered = sorted(found, key=lambda one: (one.home, stage_order(one.stage), one.written or 0.0, one.directory))
    return Overview(place, tuple(ordered), tuple(text for home, text in problems.items() if place in (root, home)))


def _root_of(place: str, readable: Callable[[str], bool]) -> str:
    """Return the root that holds the dataset or source at `place`, or `place` itself if it contains no step
    directly.
    """
    if not any(urls.parent(step) == place for step in steps_in(place, readable)):
        return place
    above = urls.parent(place)
    return urls.parent(above) if urls.name(above) == SOURCES else above


def _read(directory: str) -> ListedStep:
    stage, state = urls.name(directory).rpartition("-")[0], UNFINISHED
    try:
        manifest = find_manifest(directory)
    except NewerFormatError:
        manifest, state = None, NEWER
    if manifest is None:
        return ListedStep(directory, urls.name(urls.parent(directory)), stage, state, None, None, {})
    inputs = tuple(urls.parent(urls.join(directory, entry.path)) for entry in manifest.inputs)
    ours = {module.NAME: module.FORMAT_VERSION for module in READS}
    state = NEWER if (manifest.version or 0) > ours.get(manifest.stage, sys.maxsize) else SUPERSEDED
    return ListedStep(
        directory, manifest.dataset, manifest.stage, state, urls.modified(urls.join(directory, FILE_NAME)),
        manifest.totals, manifest.parameters, inputs,
    )  # fmt: skip


def _current(
    steps: dict[str, ListedStep], closed: AbstractSet[str], readable: Callable[[str], bool]
) -> tuple[set[str], dict[str, str]]:
    """Return the directories of the current steps, and a mapping from the directory of each undecided dataset to the
    reason why it is undecided. closed: the datasets of which not everything may be read.
    """
    homes = dict.fromkeys(one.home for one in steps.values() if not _shared(one))
    found, problems = set[str](), dict[str, str]()
    for home in homes:
        own = [one for one in steps.values() if one.home == home]
        if all(one.stage.startswith("packing-") for one in own):
            continue
        try:
            if home in closed or not _recorded_readable(home, readable):
                problems[home] = f"{urls.name(home)} has files that must not be read, so its current steps are unknown"
                continue
            last = finished_step(home, readable)
            cache = current_cache(home) if any(one.stage == CACHE_STAGE for one in own) else None
            documents, passages = current_documents(home), current_passages(home)
            ends = [step[0] for step in (last, cache, documents, passages, *current_attributes(home)) if step]
            if read_latest(home) is None:  # of an unfinished run, the contract step is not behind the last step
                ends += [one.directory for one in own if one.stage == CONTRACT and one.state == SUPERSEDED]
        except (UsageError, NotFoundError, CorruptError, NewerFormatError) as error:
            problems[home] = str(error)
        else:
            _add_behind(ends, steps, found)
    return found, problems


def _recorded_readable(home: str, readable: Callable[[str], bool]) -> bool:
    """Return True if the steps that are recorded as current may be read."""
    latest = read_latest(home)
    if latest is None:
        return True
    own = [urls.join(home, step.directory) for step in latest.own_steps()]
    attributes = [urls.join(urls.parent(home), path) for path, _ in latest.attribute_steps()]
    return all(map(readable, own + attributes))


def _add_behind(directories: Sequence[str], steps: dict[str, ListedStep], found: set[str]) -> None:
    """Add to `found` these step directories, and the directories of all steps from which these steps were made,
    directly or indirectly. Directories that are not in `steps` are ignored.
    """
    for directory in directories:
        if directory in steps and directory not in found:
            found.add(directory)
            _add_behind(steps[directory].inputs, steps, found)


def _shared(step: ListedStep) -> bool:
    return urls.name(urls.parent(step.home)) == SOURCES


def _state(step: ListedStep, steps: dict[str, ListedStep], current: set[str], problems: dict[str, str]) -> str:
    if step.directory in current:
        return UNFINISHED if step.state == UNFINISHED else CURRENT
    if step.state in (UNFINISHED, NEWER):
        return step.state
    if step.stage.startswith("packing-") and step.inputs:
        cache = steps.get(step.inputs[0])
        return _state(cache, steps, current, problems) if cache else UNDECIDED
    return UNDECIDED if step.home in problems or (problems and _shared(step)) else SUPERSEDED
