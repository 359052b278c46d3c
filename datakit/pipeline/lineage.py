"""What a finished step holds and what it was made from, up to the raw files: read from manifests alone.

Manifests refer to one another by relative paths, so this also works on a dataset that was moved or mirrored; where only
a part of it was, the missing steps are named by their identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from datakit.errors import NotFoundError
from datakit.normalize.inspect import RawReport, inspect_source
from datakit.pipeline.root_layout import STEP_NAME, stage_order, steps_in
from datakit.storage import urls
from datakit.storage.manifest import FILE_NAME, Column, InputReference, Manifest, find_manifest, read_manifest

SAMPLE_IDS = 3


@dataclass(frozen=True)
class Ancestor:
    """A step upstream. `depth` is the distance in the tree; `found` is False where its manifest is not there."""

    depth: int
    stage: str
    dataset: str
    directory: str
    identity: str
    found: bool
    rows: int | None = None
    bytes: int | None = None
    files: tuple[str, ...] = ()  # of a download: the raw files, relative to the source
    seen: bool = False  # shown further up already, with all above it


@dataclass(frozen=True)
class StepDescription:
    """A finished step. `parts` is (source, partitions, rows, bytes, text_bytes, tokens) for each source."""

    directory: str
    stage: str
    dataset: str
    fingerprint: str
    identity: str
    parameters: dict[str, Any]
    schema: list[Column]
    rows: int
    bytes: int
    text_bytes: int | None
    tokens: int | None
    counters: dict[str, int]
    quarantined: int
    parts: tuple[tuple[str, int, int, int, int | None, int | None], ...]
    sample_ids: tuple[str, ...]
    lineage: tuple[Ancestor, ...]
    details: dict[str, Any]
    beside: tuple[str, ...] = ()  # other finished steps of the dataset, where a dataset was asked for


def inspect(target: str) -> StepDescription | RawReport:
    """What is at `target`: a finished step (its directory, its manifest, its dataset's directory), or a raw source.

    Raises NotFoundError for a step that is unfinished, NoInputError where there is nothing.
    """
    place = urls.absolute(target)
    if urls.name(place) == FILE_NAME:
        place = urls.parent(place)
        return _description(place, read_manifest(place), ())
    manifest = find_manifest(place)
    if manifest is not None:
        return _description(place, manifest, ())
    if STEP_NAME.fullmatch(urls.name(place)) and urls.listing(place):
        raise NotFoundError(
            f"{place} is not finished: it has no {FILE_NAME}; `datakit status {target}` shows its tasks"
        )
    steps = sorted(steps_in(place), key=lambda step: (stage_order(urls.name(step).rpartition("-")[0]), step))
    finished = [step for step in steps if urls.exists(urls.join(step, FILE_NAME))]
    if not finished:
        return inspect_source(target)
    return _description(finished[-1], read_manifest(finished[-1]), tuple(finished[:-1]))


def _description(directory: str, manifest: Manifest, beside: tuple[str, ...]) -> StepDescription:
    return StepDescription(
        directory=directory,
        stage=manifest.stage,
        dataset=manifest.dataset,
        fingerprint=manifest.fingerprint,
        identity=manifest.identity,
        parameters=manifest.parameters,
        schema=manifest.schema,
        rows=manifest.totals.rows,
        bytes=manifest.totals.bytes,
        text_bytes=manifest.totals.text_bytes,
        tokens=manifest.totals.tokens,
        counters=manifest.counters,
        quarantined=manifest.quarantine.records,
        parts=tuple(_parts(manifest)),
        sample_ids=_sample_ids(manifest),
        lineage=tuple(_ancestors(directory, manifest, 0, set())),
        details=manifest.details,
        beside=beside,
    )


def _parts(manifest: Manifest) -> Iterator[tuple[str, int, int, int, int | None, int | None]]:
    for source in dict.fromkeys(partition.source for partition in manifest.partitions):
        parts = manifest.partitions_of(source)
        texts, tokens = [part.text_bytes for part in parts], [part.tokens for part in parts]
        yield (
            source,
            len(parts),
            sum(part.rows for part in parts),
            sum(part.bytes for part in parts),
            None if None in texts else sum(size or 0 for size in texts),
            None if None in tokens else sum(count or 0 for count in tokens),
        )


def _sample_ids(manifest: Manifest) -> tuple[str, ...]:
    """Ids of three documents, spread over the partitions: the manifest knows each one's first and last."""
    known = [part.first_id for part in manifest.partitions if part.first_id]
    known += [part.last_id for part in manifest.partitions if part.last_id]
    ids = list(dict.fromkeys(known))
    step = max(1, len(ids) // SAMPLE_IDS)
    return tuple(ids[::step][:SAMPLE_IDS])


def _ancestors(directory: str, manifest: Manifest, depth: int, seen: set[str]) -> Iterator[Ancestor]:
    """Everything above a step, depth first; a step that was shown is not shown again in full."""
    for reference in manifest.inputs:
        place = urls.parent(urls.join(directory, reference.path))
        above = find_manifest(place)
        if above is None or above.identity != reference.identity:
            yield _absent(place, reference, depth)
            continue
        again = above.identity in seen
        seen.add(above.identity)
        yield Ancestor(
            depth,
            above.stage,
            above.dataset,
            place,
            above.identity,
            found=True,
            rows=above.totals.rows if above.stage != "download" else None,
            bytes=above.totals.bytes,
            files=tuple(part.path for part in above.partitions) if above.stage == "download" else (),
            seen=again,
        )
        if not again:
            yield from _ancestors(place, above, depth + 1, seen)


def _absent(place: str, reference: InputReference, depth: int) -> Ancestor:
    return Ancestor(depth, reference.stage, "", place, reference.identity, found=False)
