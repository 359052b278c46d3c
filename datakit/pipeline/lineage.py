"""Decides whether the target of `datakit inspect` is a step or raw files, and describes a step with its lineage. The
lineage is everything from which the step was made, back to the raw files, and is read from manifests only. Manifests
refer to one another by relative paths, so the lineage of a moved or mirrored dataset can be read, too. If only a part
of the dataset was moved, each missing step is shown by its identity.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import msgspec

from datakit.cache.contract import Contract
from datakit.errors import CorruptError, NotFoundError
from datakit.normalize.inspection.report import RawReport, inspect_source
from datakit.pipeline.columns import all_columns
from datakit.pipeline.root_layout import STEP_NAME, last_stage, stage_order, steps_in
from datakit.signed_urls import split_query
from datakit.storage import urls
from datakit.storage.latest import current_documents, current_passages, current_step, only_finished
from datakit.storage.manifest import (
    FILE_NAME,
    Column,
    Manifest,
    find_manifest,
    manifest_url,
    read_manifest,
    totals_of,
)

SAMPLE_IDS = 3
_Details = TypeVar("_Details")


@dataclass(frozen=True)
class Ancestor:
    """An upstream step, `depth` + 1 levels above the described step. found: True if the step is in `directory`."""

    depth: int
    stage: str
    dataset: str
    directory: str
    identity: str
    found: bool
    rows: int | None = None
    bytes: int | None = None
    files: tuple[str, ...] = ()  # only for a download: the paths of raw files in the source
    seen: bool = False  # already listed, together with all of its ancestors


class SourceTotals(NamedTuple):
    """The totals of the part of a step's output that comes from one source. text_bytes, tokens: None if they are not
    recorded.
    """

    source: str
    partitions: int
    rows: int
    bytes: int
    text_bytes: int | None
    tokens: int | None


@dataclass(frozen=True)
class StepDescription:
    """A finished step. If the target was a dataset, `beside` lists the dataset's other finished steps. The `repr` of a
    description shows only the fields that do not grow with the dataset.
    """

    directory: str
    stage: str
    dataset: str
    fingerprint: str
    identity: str
    parameters: dict[str, Any] = field(repr=False)
    schema: list[Column] = field(repr=False)
    rows: int
    bytes: int
    text_bytes: int | None
    tokens: int | None
    counters: dict[str, int] = field(repr=False)
    quarantined: int
    parts: tuple[SourceTotals, ...] = field(repr=False)
    sample_ids: tuple[str, ...]
    lineage: tuple[Ancestor, ...] = field(repr=False)
    details: dict[str, Any] = field(repr=False)
    beside: tuple[str, ...] = ()


class Removed(msgspec.Struct, frozen=True):
    """The effect of dedup on a source. documents: the number before dedup. rate: the share of documents removed."""

    documents: int
    exact: int
    fuzzy: int
    retained: int
    rate: float


class _DedupDetails(msgspec.Struct, frozen=True):
    sources: dict[str, Removed]


class _TokenizeDetails(msgspec.Struct, frozen=True):
    contract: Contract


def removed_by_source(step: StepDescription) -> dict[str, Removed]:
    """Return what a dedup step removed from each source. Raises CorruptError."""
    return _details(step, _DedupDetails).sources


def contract_of(step: StepDescription) -> Contract:
    """Return the contract of a token cache. Raises CorruptError."""
    return _details(step, _TokenizeDetails).contract


def _details(step: StepDescription, form: type[_Details]) -> _Details:
    try:
        return msgspec.convert(step.details, form)
    except msgspec.ValidationError as error:
        raise CorruptError(
            f"{manifest_url(step.directory)} does not describe a {step.stage} step ({error}), so datakit did not "
            "write this manifest; do not use the step"
        ) from error


def inspect(
    target: str | os.PathLike[str], compiling: Callable[[], None] = lambda: None
) -> StepDescription | RawReport:
    """Return a description of a finished step or a raw source. A dataset's directory stands for the last step of its
    current run.

    Calls `compiling` if kernels must be compiled to read a raw source. Raises NotFoundError if the target is an
    unfinished step, and NoInputError if it contains neither a step nor raw files.
    """
    target = os.fspath(target)
    found = finished_step(urls.absolute(target))
    return inspect_source(target, compiling=compiling) if found is None else _description(*found)


def finished_step(
    place: str, readable: Callable[[str], bool] = lambda place: True
) -> tuple[str, Manifest, tuple[str, ...]] | None:
    """Return (directory, manifest, others) for the step at a URL or, if there is a dataset at the URL, for the last
    step of its current run. Return None if there is neither a step nor a dataset at the URL. others: the directories of
    the dataset's other finished steps; empty if the URL is that of a step. Directories for which `readable` returns
    False are not searched for steps.

    Raises NotFoundError if the step at the URL is unfinished, and UsageError if nothing records which step of a dataset
    is current.
    """
    if urls.name(place) == FILE_NAME:
        place = urls.parent(place)
        return place, read_manifest(place), ()
    if split_query(place)[1] or (urls.is_local(place) and os.path.exists(place) and not os.path.isdir(place)):
        return None
    manifest = find_manifest(place)
    if manifest is not None:
        return place, manifest, ()
    if STEP_NAME.fullmatch(urls.name(place)) and urls.listing(place):
        raise NotFoundError(f"{place} is not finished: it has no {FILE_NAME}; `datakit status {place}` shows its tasks")
    finished = [step for step in steps_in(place, readable) if urls.exists(urls.join(step, FILE_NAME))]
    found = (current_step(place) or _last_step(place, finished)) if finished else None
    return found and (*found, tuple(sorted({*finished} - {found[0]}, key=_flow)))


def published_step(place: str, known: set[str]) -> tuple[str, Manifest] | None:
    """Return the directory and manifest of a dataset's consolidate step, if its inputs are among the steps with the
    identities `known` (the current step and all steps from which it was made) but the consolidate step itself is not.
    Return None if there is no such step, or if `place` is the URL of a step.
    """
    return _beside(place, known, current_documents)


def unread_passages(place: str, known: set[str]) -> tuple[str, Manifest] | None:
    """Return the directory and manifest of a dataset's passages step if no edit uses its spans, so that it is not among
    the steps with the identities `known`, but its inputs are. Otherwise return None, as for `published_step`.
    """
    return _beside(place, known, current_passages)


def _beside(
    place: str, known: set[str], current: Callable[[str], tuple[str, Manifest] | None]
) -> tuple[str, Manifest] | None:
    if urls.name(place) == FILE_NAME or STEP_NAME.fullmatch(urls.name(place)):
        return None
    found = current(place)
    if found is None or found[1].identity in known:
        return None
    return found if known.issuperset(entry.identity for entry in found[1].inputs) else None


def identities_behind(directory: str, manifest: Manifest) -> set[str]:
    """Return the identities of a step and of all steps from which it was made, as far as these are found."""
    return {manifest.identity, *(above.identity for above in _ancestors(directory, manifest, 0, {}) if above.found)}


def _last_step(place: str, finished: list[str]) -> tuple[str, Manifest] | None:
    """Return the directory and manifest of the step in `finished` that belongs to the last stage. Raises UsageError if
    several steps belong to that stage.
    """
    last = max(map(_stage, finished), key=last_stage, default="")
    step = only_finished(place, [step for step in finished if _stage(step) == last])
    return (step, read_manifest(step)) if step else None


def _stage(step: str) -> str:
    return urls.name(step).rpartition("-")[0]


def _flow(step: str) -> tuple[int, str]:
    return stage_order(_stage(step)), step


def _description(directory: str, manifest: Manifest, beside: tuple[str, ...]) -> StepDescription:
    totals = manifest.totals
    return StepDescription(
        directory=directory, stage=manifest.stage, dataset=manifest.dataset, fingerprint=manifest.fingerprint,
        identity=manifest.identity, parameters=manifest.parameters, schema=all_columns(directory, manifest),
        rows=totals.rows, bytes=totals.bytes, text_bytes=totals.text_bytes, tokens=totals.tokens,
        counters=manifest.counters, quarantined=manifest.quarantine.records, parts=tuple(_source_totals(manifest)),
        sample_ids=_sample_ids(manifest), lineage=tuple(_ancestors(directory, manifest, 0, {})),
        details=manifest.details, beside=beside,
    )  # fmt: skip


def _source_totals(manifest: Manifest) -> Iterator[SourceTotals]:
    for source, parts in manifest.by_source.items():
        totals = totals_of(parts)
        yield SourceTotals(source, len(parts), totals.rows, totals.bytes, totals.text_bytes, totals.tokens)


def _sample_ids(manifest: Manifest) -> tuple[str, ...]:
    """Return up to SAMPLE_IDS document ids, spread over the partitions. They come from the manifest, not from
    the data.
    """
    known = [part.first_id for part in manifest.partitions if part.first_id]
    known += [part.last_id for part in manifest.partitions if part.last_id]
    ids = list(dict.fromkeys(known))
    step = max(1, len(ids) // SAMPLE_IDS)
    return tuple(ids[::step][:SAMPLE_IDS])


def _ancestors(directory: str, manifest: Manifest, depth: int, seen: dict[str, Ancestor]) -> Iterator[Ancestor]:
    """Yield all steps upstream of a step, depth first. If a step occurs more than once, its manifest is read and its
    ancestors are listed only the first time. seen: the steps so far, by identity.
    """
    for reference in manifest.inputs:
        place = urls.parent(urls.join(directory, reference.path))
        known = seen.get(reference.identity)
        if known is not None and known.directory == place:
            yield replace(known, depth=depth, seen=True)
            continue
        above = find_manifest(place)
        if above is None or above.identity != reference.identity:
            yield Ancestor(depth, reference.stage, "", place, reference.identity, found=False)
            continue
        found = _ancestor(depth, place, above)
        if known is not None:  # a copy in another directory
            yield replace(found, seen=True)
            continue
        seen[above.identity] = found
        yield found
        yield from _ancestors(place, above, depth + 1, seen)


def _ancestor(depth: int, place: str, manifest: Manifest) -> Ancestor:
    raw = manifest.stage == "download"
    rows, files = None if raw else manifest.totals.rows, tuple(part.path for part in manifest.partitions) if raw else ()
    return Ancestor(
        depth, manifest.stage, manifest.dataset, place, manifest.identity, True, rows, manifest.totals.bytes, files
    )
