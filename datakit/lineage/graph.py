"""Collects the lineage of a step, a dataset or a training run: all steps from which it was made, and their sources.

Manifests refer to one another by relative paths, so the lineage of a moved root can be read. If a step is missing, it
is listed with its stage and its identity. The versions of libraries come from the ledgers, and the URLs of sources come
from the logs of runs. If a copy of a root lacks ledgers or logs, its lineage lacks these facts.

Cost: one read of each step's manifest and of the first ledger line of each of its drivers, and one read of the logs of
the datasets' runs (at most 72 MiB each).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from datakit.engine.ledger.ledger import DriverLine, drivers
from datakit.errors import UsageError
from datakit.lineage.sources import SourceRecord, read_sources
from datakit.pipeline.lineage import finished_step, published_step, unread_passages
from datakit.redaction import redacted_values
from datakit.storage import urls
from datakit.storage.manifest import Column, InputReference, Manifest, find_manifest

TRAIN = "train"
DOWNLOAD = "download"


@dataclass(frozen=True)
class StepRecord:
    """A step of a lineage. name: unique in the lineage, for example `normalize novels`. inputs: the identities of the
    steps that it read. versions: of Python and the libraries, one entry for each different set with which drivers ran
    the step; empty if the step has no ledger. code: the hashes of the user's own code. started: when the first driver
    began; finished: when the manifest was written; both in seconds since 1970. If `found` is false, the step is
    missing, and only its stage and its identity are known.
    """

    name: str
    stage: str
    dataset: str
    directory: str
    identity: str
    found: bool
    fingerprint: str = ""
    version: int | None = None
    checksum: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict, repr=False)
    inputs: tuple[str, ...] = ()
    files: int = 0
    rows: int = 0
    bytes: int = 0
    text_bytes: int | None = None
    tokens: int | None = None
    quarantined: int = 0
    counters: Mapping[str, int] = field(default_factory=dict, repr=False)
    columns: tuple[Column, ...] = field(default=(), repr=False)
    versions: tuple[Mapping[str, str], ...] = field(default=(), repr=False)
    code: tuple[str, ...] = ()
    started: float | None = None
    finished: float | None = None


@dataclass(frozen=True)
class Lineage:
    """The sources and steps from which a step was made. steps: upstream steps first; the last one is the described
    step.
    """

    dataset: str
    directory: str
    sources: tuple[SourceRecord, ...]
    steps: tuple[StepRecord, ...]

    @property
    def last(self) -> StepRecord:
        """The described step."""
        return self.steps[-1]

    def step(self, identity: str) -> StepRecord:
        """Return the step with this identity."""
        return next(step for step in self.steps if step.identity == identity)


@dataclass(frozen=True)
class FoundStep:
    """A step and its expected directory. manifest: None if this directory holds no finished step."""

    directory: str
    stage: str
    identity: str
    manifest: Manifest | None


def read_lineage(target: str) -> Lineage:
    """Return the lineage of a step, of the last step of a dataset's current run, or of a finished training run.

    Raises UsageError if there is no finished step at the URL or if nothing records which step of a dataset is current,
    and CorruptError if a manifest is damaged.
    """
    place = urls.absolute(target)
    found = finished_step(place)
    if found is None:
        raise UsageError(
            f"{place} contains no finished step; give the directory of a dataset, a step or a training run "
            "(`datakit ls` lists the steps of a root)"
        )
    directory, manifest, _ = found
    return lineage_of(with_published(place, upstream_first(directory, manifest)), manifest.dataset)


def with_published(
    place: str, steps: list[FoundStep], readable: Callable[[str], bool] = lambda place: True
) -> list[FoundStep]:
    """Return the steps behind a dataset's last step. The dataset's passages and consolidate steps are inserted before
    the last step, even if the last step was not made from them. If the URL is that of a step, return `steps` unchanged.
    """
    known = {step.identity for step in steps if step.manifest is not None}
    found = [one for one in (unread_passages(place, known), published_step(place, known)) if one is not None]
    more = [
        FoundStep(directory, manifest.stage, manifest.identity, manifest)
        for directory, manifest in found
        if readable(directory)
    ]
    return [*steps[:-1], *more, steps[-1]]


def lineage_of(steps: list[FoundStep], dataset: str) -> Lineage:
    """Return the lineage that consists of these steps."""
    names = _names(steps)
    records = tuple(_record(step, name) for step, name in zip(steps, names, strict=True))
    downloads = {step.directory: step.manifest for step in steps if step.manifest and step.stage == DOWNLOAD}
    homes = [urls.parent(step.directory) for step in steps if step.manifest and step.stage != DOWNLOAD]
    return Lineage(dataset, steps[-1].directory, read_sources(downloads, homes), records)


def upstream_first(
    directory: str, manifest: Manifest, readable: Callable[[str], bool] = lambda place: True
) -> list[FoundStep]:
    """Return a step and all steps from which it was made, each once and after those that it reads. Upstream steps for
    which `readable` returns False are not read, and have no manifest.
    """
    return [
        *_upstream(directory, manifest, set(), readable),
        FoundStep(directory, manifest.stage, manifest.identity, manifest),
    ]


def _upstream(
    directory: str, manifest: Manifest, seen: set[str], readable: Callable[[str], bool]
) -> Iterator[FoundStep]:
    for reference in manifest.inputs:
        if reference.identity in seen:
            continue
        seen.add(reference.identity)
        step = _located(directory, reference, readable)
        if step.manifest is not None:
            yield from _upstream(step.directory, step.manifest, seen, readable)
        yield step


def _located(directory: str, reference: InputReference, readable: Callable[[str], bool]) -> FoundStep:
    place = urls.parent(urls.join(directory, reference.path))
    manifest = find_manifest(place) if readable(place) else None
    if manifest is not None and manifest.identity != reference.identity:
        manifest = None
    return FoundStep(place, reference.stage, reference.identity, manifest)


def _names(steps: list[FoundStep]) -> list[str]:
    """Return a unique name for each step. If several steps share a name, or if a step is missing, the beginning of the
    step's identity is appended.
    """
    names = [f"{step.stage} {step.manifest.dataset}" if step.manifest else step.stage for step in steps]
    return [
        f"{name} {step.identity[:12]}" if names.count(name) > 1 or step.manifest is None else name
        for name, step in zip(names, steps, strict=True)
    ]


def _record(step: FoundStep, name: str) -> StepRecord:
    manifest = step.manifest
    if manifest is None:
        return StepRecord(name, step.stage, "", step.directory, step.identity, found=False)
    started = list(drivers(step.directory))
    return StepRecord(
        name, step.stage, manifest.dataset, step.directory, step.identity, True, manifest.fingerprint,
        manifest.version, manifest.checksum, redacted_values(manifest.parameters),
        tuple(reference.identity for reference in manifest.inputs), len(manifest.partitions) + len(manifest.files),
        manifest.totals.rows, manifest.totals.bytes, manifest.totals.text_bytes, manifest.totals.tokens,
        manifest.quarantine.records, manifest.counters, tuple(manifest.schema), _versions(started, manifest),
        tuple(dict.fromkeys(line.code for line in started if line.code)),
        min((line.time for line in started), default=None), urls.modified(urls.join(step.directory, "manifest.json")),
    )  # fmt: skip


def _versions(started: list[DriverLine], manifest: Manifest) -> tuple[dict[str, str], ...]:
    """Return the different sets of versions with which a step ran. A training run has no ledger; its versions come from
    its manifest.
    """
    found = [line.versions for line in started]
    if manifest.stage == TRAIN and "code" in manifest.details:
        code = manifest.details["code"]
        found.append({"datakit": code["version"], "trainer sources": code["sources"]})
    return tuple(entry for number, entry in enumerate(found) if entry not in found[:number])
