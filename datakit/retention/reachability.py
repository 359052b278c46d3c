"""Decides which finished steps of a root are still needed, and why.

A step is needed if one of these names it, or if it is an input, direct or indirect, of a step that is needed:

    latest.json      the current step, token cache, consolidate, annotate and passages steps of each dataset
    pins             `datakit pin`
    training runs    the caches in the record (`leases/training_record.py`) or in the manifest of every run in the root
    packing steps    the caches that mixtures were packed with, and the packing steps themselves
    imported caches  steps whose arrays an imported cache in the root reads in place
    live leases      everything that a running process relies on

Two cases are decided in favor of keeping. A dataset without `latest.json` (begun by an earlier version, or never
completed) keeps all its finished steps, and those of its sources. An unfinished training run keeps every token cache if
it does not record all its caches (begun by an earlier version), or if a path in its record leads to no finished step.

Everything is read in this order: leases first, then what their processes leave behind when they end, then manifests.
So a process that ends in the meantime is seen by its lease or by what it left behind. A manifest, pin, lease or record
that cannot be read may name any step, so RetentionError is raised, and nothing is removed. Nothing outside of the root
is searched: if a program elsewhere uses a step of this root, the step must be pinned.

Cost: one read of each manifest in the root; memory for the paths of the steps, not for their manifests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from datakit.cache.external_arrays import array_directory, read_external
from datakit.errors import DatakitError, RetentionError
from datakit.leases.lease_files import USE, read_leases
from datakit.leases.own_folder import paths_below
from datakit.leases.pins import read_pins
from datakit.leases.training_record import read_record
from datakit.pipeline.root_layout import SOURCES, sources_of
from datakit.retention.inventory import children, home_paths, is_step, step_of
from datakit.storage import urls
from datakit.storage.latest import CACHE_STAGE, read_latest
from datakit.storage.manifest import FILE_NAME, Manifest, find_manifest, is_finished

TRAINING_RUN = re.compile(r"train-[0-9a-f]{12}")  # the names of training runs; importing the trainer would import JAX
PACKING = "packing-"
MANIFEST_MARK = b"datakit.manifest/"


@dataclass(frozen=True)
class Reachability:
    """The steps of a root, given by their paths in it. finished: for each finished step, the steps that it was made
    from. needed: for each step that is needed, the reason. leased: the steps in live leases, including unfinished ones.
    current: the current steps of datasets, and all steps that they were made from. because: for each step that is
    needed, the reason for which it or a step that was made from it is kept.
    """

    finished: dict[str, tuple[str, ...]]
    needed: dict[str, str]
    leased: frozenset[str]
    current: frozenset[str]
    because: dict[str, str]

    def unreachable(self) -> list[str]:
        """Return the paths of the finished steps that are not needed."""
        return sorted(step for step in self.finished if step not in self.needed)


def reachability(root: str) -> Reachability:
    """Read the root. Raises RetentionError if something in it cannot be read."""
    with _refusals(root):
        return _Reader(root).read()


@contextmanager
def _refusals(root: str) -> Iterator[None]:
    try:
        yield
    except RetentionError:
        raise
    except DatakitError as error:
        raise RetentionError(
            f"nothing is removed from {root}, because it cannot be decided which steps are still needed: {error}"
        ) from error


@dataclass
class _Reader:
    root: str
    _finished: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _roots: dict[str, str] = field(default_factory=dict)  # step -> why it is needed
    _current: list[str] = field(default_factory=list)

    def read(self) -> Reachability:
        leases = [lease for lease in read_leases(self.root, USE) if not lease.expired]
        for lease in leases:
            self._need(lease.content.steps, f"in use by {lease.content.holder}")
        for pin in read_pins(self.root):
            self._need([pin.step], f"pinned: {pin.reason}")
        homes = home_paths(self.root)
        folders = {home: children(self.root, home) for home in homes}
        recorded = {home: self._read_latest(home) for home in homes if not home.startswith(f"{SOURCES}/")}
        runs = [path for home in homes for path in folders[home] if TRAINING_RUN.fullmatch(urls.name(path))]
        unrecorded = [why for run in runs if (why := self._read_training_run(run))]
        steps = [path for home in homes for path in folders[home] if is_step(path)]
        for step in steps:
            self._read_step(step)
        for home, has_record in recorded.items():
            if not has_record:
                self._need(self._finished_steps(home), f"no latest.json records which steps of {home} are current")
        self._read_other_manifests()
        if unrecorded:
            caches = [step for step in self._finished if urls.name(step).startswith(f"{CACHE_STAGE}-")]
            self._need(caches, unrecorded[0])
        leased = frozenset(step for lease in leases for step in lease.content.steps)
        needed, because = self._closure(self._roots)
        current, _ = self._closure(dict.fromkeys(self._current, ""))
        return Reachability(self._finished, needed, leased, frozenset(current), because)

    def _finished_steps(self, home: str) -> list[str]:
        """Return the finished steps of a dataset and of its sources."""
        sources = {f"{SOURCES}/{urls.name(place)}" for place in sources_of(urls.join(self.root, home))}
        return [step for step in self._finished if urls.parent(step) in {home, *sources}]

    def _need(self, steps: Iterable[str], why: str) -> None:
        for step in steps:
            self._roots.setdefault(step, why)

    def _read_latest(self, home: str) -> bool:
        """Read a dataset's `latest.json`, and note that its steps are needed. Return False if there is no such file."""
        latest = read_latest(urls.join(self.root, home))
        if latest is not None:
            steps = [f"{home}/{step.directory}" for step in latest.own_steps()] + [
                path for path, _ in latest.attribute_steps()
            ]
            self._current += steps
            self._need(steps, f"current in {home}")
        return latest is not None

    def _read_training_run(self, path: str) -> str:
        """Read which caches a training run uses. Return the reason why it may use any cache, or "" if there is none."""
        directory, why = urls.join(self.root, path), f"read by the training run {path}"
        manifest, record = find_manifest(directory), read_record(directory)
        caches = [cache for cache, _ in record.caches.values()] if record else []
        self._need(_below(self.root, directory, caches), why)
        if manifest is not None:
            self._need(self._inputs(directory, manifest), why)
            return ""
        if record is None or not record.complete:
            return f"{path} does not record which caches it reads"
        lost = next((cache for cache in caches if not _leads_to_a_step(directory, cache)), None)
        return f"{path} records the cache {lost}, which is not there" if lost else ""

    def _read_step(self, step: str) -> None:
        directory = urls.join(self.root, step)
        manifest = find_manifest(directory)
        if manifest is None:
            return
        self._finished[step] = tuple(self._inputs(directory, manifest))
        if urls.name(step).startswith(PACKING):
            self._need([step], "a mixture was packed with it")

    def _inputs(self, directory: str, manifest: Manifest) -> list[str]:
        """Return the steps of this root that a manifest names, as inputs or as places of imported arrays."""
        places = [urls.parent(entry.path) for entry in manifest.inputs]
        external = read_external(directory, manifest)
        places += [array_directory(directory, shard) for shard in external.shards] if external else []
        return _below(self.root, directory, places)

    def _read_other_manifests(self) -> None:
        """Read the manifests that lie elsewhere in the root, such as those of imported caches."""
        for info in urls.listing(self.root):
            place = urls.parent(info.path)
            if urls.name(info.path) != FILE_NAME or step_of(info.path) or TRAINING_RUN.search(place):
                continue
            if MANIFEST_MARK not in urls.read_bytes(info.url):
                continue  # another program's file of the same name
            manifest = find_manifest(urls.parent(info.url))
            if manifest is not None:
                self._need(self._inputs(urls.parent(info.url), manifest), f"read by {place or 'the root'}")

    def _closure(self, roots: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the steps in `roots` and all their inputs: each with its own reason, and each with a root's reason."""
        needed, because = dict[str, str](), dict[str, str]()
        pending = [(step, why, why) for step, why in roots.items()]
        while pending:
            step, why, first = pending.pop()
            if step not in needed:
                needed[step], because[step] = why, first
                pending += [(above, f"{step} was made from it", first) for above in self._finished.get(step, ())]
        return needed, because


def _below(root: str, directory: str, places: Iterable[str]) -> list[str]:
    """Return the steps of the root to which these places lead; relative ones are relative to `directory`."""
    paths = (path for place in places for url in _absolute(directory, place) for path in paths_below(root, url))
    return [step for path in paths if (step := step_of(path)) is not None]


def _absolute(directory: str, place: str) -> list[str]:
    """Return the absolute paths or URLs to which a place may lead. A relative path is joined to `directory` as it is
    written and, on a disk, also to `directory` with all links resolved.
    """
    if _is_absolute(place):
        return [place]
    homes = [directory, os.path.realpath(urls.local_path(directory))] if urls.is_local(directory) else [directory]
    return list(dict.fromkeys(urls.join(home, place) for home in homes))


def _is_absolute(place: str) -> bool:
    return place.startswith("/") or urls.SPLITTER in place


def _leads_to_a_step(directory: str, place: str) -> bool:
    """Return True if a place leads to a finished step, or if it is an absolute path or a URL, which is not read."""
    return _is_absolute(place) or any(is_finished(url) for url in _absolute(directory, place))
