"""Finds the steps that a directory stands for: a step, a dataset, a root or a training run.

    step            the step itself
    dataset         the current steps that `latest.json` names, and all steps from which they were made
    root            every finished step below it, and every training run; unfinished steps are listed
    training run    the run itself, finished or not

Each step appears once, after the steps from which it was made. Only manifests and directory names are read. Memory: the
paths of the steps; each manifest is read again when its step is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from datakit.errors import CorruptError, DatakitError, NewerFormatError, NotFoundError
from datakit.storage import urls
from datakit.storage.globs import subdirectories
from datakit.storage.latest import FILE_NAME as LATEST
from datakit.storage.latest import (
    SOURCES,
    current_attributes,
    current_cache,
    current_documents,
    current_passages,
    current_step,
    only_finished,
    read_latest,
)
from datakit.storage.manifest import FILE_NAME, find_manifest, is_finished, manifest_url
from datakit.validate.finding import Finding
from datakit.validate.subject import is_outside

STEP_NAME = re.compile(r"([a-z-]+(?:-\d+-[a-z]+(?:-\d+)?)?)-[0-9a-f]{12}")
RUN = "train"
RUN_FILES = ("metrics.jsonl", "prediction.json", "checkpoints")
CHECK = "manifest"
RERUN = "run the recipe again (`datakit run`), which records the current steps"


@dataclass
class Targets:
    """The steps to check, in the order in which data flows. root: the directory below which all of them lie; "" if the
    target is a single step. findings: one for each manifest or `latest.json` that cannot be used. unfinished: the
    directories that are not checked, because they have no manifest or a newer version wrote it.
    """

    place: str
    root: str = ""
    steps: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)

    def add(self, directory: str, ancestors: tuple[str, ...] = ()) -> None:
        """Add a step, after the steps from which it was made (if they are part of what is checked)."""
        if directory in self.steps or directory in ancestors:
            return
        try:
            manifest = find_manifest(directory)
        except CorruptError as error:
            self.find(manifest_url(directory), f"cannot be used: {error}")
            return
        for reference in manifest.inputs if manifest is not None and self.root else ():
            above = urls.parent(urls.join(directory, reference.path))
            if not is_outside(reference) and above.startswith(f"{self.root}/") and is_finished(above):
                self.add(above, (*ancestors, directory))
        if manifest is not None:
            self.steps.append(directory)

    def find(self, url: str, difference: str, remedy: str = RERUN) -> None:
        """Report a difference, unless it has been reported before."""
        finding = Finding(url, CHECK, difference, remedy)
        if finding not in self.findings:
            self.findings.append(finding)


def targets_of(place: str) -> Targets:
    """Return the steps that a directory stands for. Raises NotFoundError if it holds none, NewerFormatError if a newer
    version wrote it, and UsageError if nothing records which of several steps of a dataset is current.
    """
    if is_finished(place) or is_run(place):
        found = Targets(place)
        _add_step(found, place)
        return found
    names = subdirectories(place)
    homes = [name for name in names if not STEP_NAME.fullmatch(name)]
    if SOURCES in names or any(_steps_of(urls.join(place, name)) for name in homes):
        return _root(place, homes)
    if _steps_of(place) or urls.exists(urls.join(place, LATEST)):
        return _dataset(place)
    raise NotFoundError(
        f"{place} holds no finished step (it has no {FILE_NAME}), and is not a dataset, root or training run; "
        "`datakit status` shows unfinished steps"
    )


def is_run(place: str) -> bool:
    """Return True if a directory is that of a training run, even an unfinished one."""
    return urls.name(place).startswith(f"{RUN}-") and bool(
        any(urls.exists(urls.join(place, name)) for name in RUN_FILES[:2]) or RUN_FILES[2] in subdirectories(place)
    )


def _add_step(found: Targets, directory: str) -> None:
    if is_finished(directory):
        found.add(directory)
    elif is_run(directory):
        found.steps.append(directory)
    else:
        found.unfinished.append(directory)


def _steps_of(home: str) -> list[str]:
    return sorted(urls.join(home, name) for name in subdirectories(home) if STEP_NAME.fullmatch(name))


def _dataset(place: str) -> Targets:
    found = Targets(place, urls.parent(place))
    for directory in _current(place, found):
        found.add(directory)
    if not found.steps and not found.findings:
        raise NotFoundError(f"{place} is a dataset without a finished step; `datakit status {place}` shows its tasks")
    return found


def _current(place: str, found: Targets) -> Iterator[str]:
    """Yield the directories of a dataset's current steps; report a `latest.json` that cannot be used."""
    try:
        latest = read_latest(place)
        if latest is None:
            yield from _undecided(place)
            return
        documents = current_documents(place)
        cache = current_cache(place) if latest.cache is not None else None
        steps = [*current_attributes(place), current_passages(place), documents, current_step(place), cache]
    except (CorruptError, NotFoundError) as error:
        found.find(urls.join(place, LATEST), f"cannot be used: {error}")
        return
    yield from (step[0] for step in steps if step is not None)


def _undecided(place: str) -> Iterator[str]:
    """Yield the only cache, or else the only finished step of the last stage, of a dataset without `latest.json`."""
    cache = current_cache(place)
    if cache is not None:
        yield cache[0]
        return
    finished = [step for step in _steps_of(place) if is_finished(step)]
    order = ("contract", "rules", "dedup", "passages", "select", "consolidate", "train-tokenizer", "tokenize")
    stages = [urls.name(step).rpartition("-")[0] for step in finished]
    last = max(stages, key=lambda stage: order.index(stage) if stage in order else -1, default="")
    step = only_finished(place, [step for step, stage in zip(finished, stages, strict=True) if stage == last])
    if step is not None:
        yield step


def _root(place: str, homes: list[str]) -> Targets:
    found = Targets(place, place)
    above = [urls.join(place, SOURCES, name) for name in subdirectories(urls.join(place, SOURCES))]
    for home in (*above, *(urls.join(place, name) for name in homes if name != SOURCES)):
        for directory in _steps_of(home):
            _add_newer(found, directory)
        if urls.exists(urls.join(home, LATEST)):
            _check_latest(home, found)
    if not found.steps and not found.findings:
        raise NotFoundError(
            f"{place} is a root without a finished step that this version can read; "
            f"`datakit status {place}` shows its tasks"
        )
    return found


def _add_newer(found: Targets, directory: str) -> None:
    """Add a step of a root; if a newer version wrote it, list it with the unfinished ones."""
    try:
        _add_step(found, directory)
    except NewerFormatError:
        found.unfinished.append(f"{directory} (written by a newer version of datakit)")


def _check_latest(home: str, found: Targets) -> None:
    try:
        current_step(home)
        current_documents(home)
        current_attributes(home)
        current_passages(home)
        if (latest := read_latest(home)) is not None and latest.cache is not None:
            current_cache(home)
    except NewerFormatError:
        return
    except DatakitError as error:
        found.find(urls.join(home, LATEST), f"cannot be used: {error}")
