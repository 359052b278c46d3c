"""Decides which finished steps of a root are still needed, and why.

A step is needed if one of these names it, or if it is an input, direct or indirect, of a step that is needed:

    latest.json      the current step and token cache of each dataset
    pins             `datakit pin`
    training runs    the caches in `caches.json` or in the manifest of every run in the root, finished or not
    packing steps    the caches that mixtures were packed with, and the packing steps themselves
    imported caches  steps whose arrays an imported cache in the root reads in place
    live leases      everything that a running process relies on

Two cases are decided in favor of keeping. A dataset without `latest.json` (begun by an earlier version, or never
completed) keeps all its finished steps, and those of its sources. A training run that records no caches (begun by an
earlier version) keeps every token cache.

Everything is read in this order: leases first, then what their processes leave behind when they end, then manifests.
A process that ends in between is seen in one of the two. A manifest, pin, lease or record that cannot be read may
name any step, so it raises RetentionError, and nothing is removed. What lies outside of the root is never looked at: a
program that uses a step of this root from elsewhere needs a pin.

Cost: one read of each manifest in the root; memory for the paths of the steps, not for their manifests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from datakit.cache.external_arrays import array_directory, read_external
from datakit.errors import CorruptError, DatakitError, NotFoundError, RetentionError
from datakit.leases.lease_files import USE, read_leases
from datakit.leases.own_folder import paths_below
from datakit.leases.pins import read_pins
from datakit.pipeline.root_layout import SOURCES, sources_of
from datakit.retention.inventory import children, home_paths, is_step, step_of
from datakit.storage import urls
from datakit.storage.json_data import decode
from datakit.storage.latest import CACHE_STAGE, read_latest
from datakit.storage.manifest import FILE_NAME, Manifest, find_manifest

TRAINING_RUN = re.compile(r"train-[0-9a-f]{12}")  # the trainer's directories; importing the trainer would import JAX
CACHES = "caches.json"
PACKING = "packing-"
MANIFEST_MARK = b"datakit.manifest/"


@dataclass(frozen=True)
class Reachability:
    """The steps of a root. finished: for each finished step, the steps that it was made from. needed: for each step
    that is needed, the reason. Steps are given by their paths in the root. leased: the steps in live leases, including
    unfinished ones.
    """

    finished: dict[str, tuple[str, ...]]
    needed: dict[str, str]
    leased: frozenset[str]

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

    def read(self) -> Reachability:
        leases = [lease for lease in read_leases(self.root, USE) if not lease.expired]
        for lease in leases:
            self._need(lease.content.steps, f"in use by {lease.content.holder}")
        for pin in read_pins(self.root):
            self._need([pin.step], f"pinned: {pin.reason}")
        homes = home_paths(self.root)
        folders = {home: children(self.root, home) for home in homes}
        recorded = {home: self._read_latest(home) for home in homes if not home.startswith(f"{SOURCES}/")}
        unrecorded = [run for home in homes for run in folders[home] if self._is_unrecorded_run(run)]
        steps = [path for home in homes for path in folders[home] if is_step(path)]
        for step in steps:
            self._read_step(step)
        for home, has_record in recorded.items():
            if not has_record:
                self._need(self._finished_steps(home), f"no latest.json records which steps of {home} are current")
        self._read_other_manifests()
        if unrecorded:
            caches = [step for step in self._finished if urls.name(step).startswith(f"{CACHE_STAGE}-")]
            self._need(caches, f"{unrecorded[0]} does not record which caches it reads")
        leased = frozenset(step for lease in leases for step in lease.content.steps)
        return Reachability(self._finished, self._closure(), leased)

    def _finished_steps(self, home: str) -> list[str]:
        """Return the finished steps of a dataset and of its sources."""
        sources = {f"{SOURCES}/{urls.name(place)}" for place in sources_of(urls.join(self.root, home))}
        return [step for step in self._finished if urls.parent(step) in {home, *sources}]

    def _need(self, steps: Iterable[str], why: str) -> None:
        for step in steps:
            self._roots.setdefault(step, why)

    def _read_latest(self, home: str) -> bool:
        """Read what is recorded for a dataset. Return True if something is."""
        latest = read_latest(urls.join(self.root, home))
        if latest is not None:
            for current in (latest.step, latest.cache):
                if current is not None:
                    self._need([f"{home}/{current.directory}"], f"current in {home}")
        return latest is not None

    def _is_unrecorded_run(self, path: str) -> bool:
        """Read which caches a training run uses. Return True for a run that does not record this."""
        if not TRAINING_RUN.fullmatch(urls.name(path)):
            return False
        directory, why = urls.join(self.root, path), f"read by the training run {path}"
        manifest, caches = find_manifest(directory), _recorded_caches(directory)
        self._need(_below(self.root, directory, caches or []), why)
        if manifest is not None:
            self._need(self._inputs(directory, manifest), why)
        return manifest is None and caches is None

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

    def _closure(self) -> dict[str, str]:
        needed, pending = dict[str, str](), list(self._roots.items())
        while pending:
            step, why = pending.pop()
            if step not in needed:
                needed[step] = why
                pending += [(above, f"{step} was made from it") for above in self._finished.get(step, ())]
        return needed


def _below(root: str, directory: str, places: Iterable[str]) -> list[str]:
    """Return the steps of the root to which these places lead; relative ones are relative to `directory`."""
    absolute = (place if place.startswith("/") or urls.SPLITTER in place else urls.join(directory, place)
                for place in places)  # fmt: skip
    paths = (path for place in absolute for path in paths_below(root, place))
    return [step for path in paths if (step := step_of(path)) is not None]


def _recorded_caches(directory: str) -> list[str] | None:
    """Return the places of the caches that a training run records; None if it records none."""
    url = urls.join(directory, CACHES)
    try:
        content = decode(urls.read_bytes(url), dict[str, tuple[str, str]])
    except NotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise CorruptError(f"{url} cannot be read: {error}; remove it, and resume the training run once") from error
    return [cache for cache, _ in content.values()]
