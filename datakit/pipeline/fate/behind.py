"""Finds the last step of a dataset, all steps from which this step was made, and the place of a document in their
files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from datakit.errors import UsageError
from datakit.pipeline.lineage import finished_step, published_step, unread_passages
from datakit.storage import urls
from datakit.storage.manifest import Manifest, find_manifest
from datakit.storage.parquet import find_rows


@dataclass(frozen=True)
class Finished:
    """A finished step."""

    directory: str
    manifest: Manifest

    def row(self, source: str, identity: str, columns: list[str], suffix: str = "") -> tuple[str, int, Any] | None:
        """Return the path of the partition that contains a document, the index of the document's row in the partition,
        and the row's values in `columns`, by name. Return None if this step's output does not contain the document.

        suffix: appended to a partition's path to get the path of its Parquet file; "" if the partition is that file.
        """
        for partition in self.manifest.partitions_of(source):
            if partition.rows and (partition.first_id or "") <= identity <= (partition.last_id or "g"):
                for row, values in find_rows(self.url(partition.path) + suffix, identity, columns):
                    return partition.path, row, values
        return None

    def url(self, path: str) -> str:
        """Return the URL of the step's file with this path."""
        return urls.join(self.directory, path)


@dataclass(frozen=True)
class Behind:
    """A step and all steps from which it was made.

    last: the given step or, if a dataset was given, the last step of its current run.
    steps: `last` and all steps from which it was made.
    others: the dataset's finished steps that are neither among `steps` nor `published` nor `searched`.
    published: if a dataset was given, the consolidate step that belongs to `last` but is not among its inputs.
    searched: likewise, the passages step.
    """

    last: Finished
    steps: tuple[Finished, ...]
    others: tuple[str, ...]
    published: Finished | None = None
    searched: Finished | None = None

    def of(self, stage: str, source: str | None = None) -> Finished | None:
        """Return the step of a stage (and of `source`, if the stage has a step per source), or None if there is
        none.
        """
        found = (step for step in self.steps if step.manifest.stage == stage)
        return next((step for step in found if source in (None, step.manifest.dataset)), None)

    @property
    def normalized(self) -> dict[str, Finished]:
        """The normalize steps by source, in the order of the recipe's sources."""
        return {step.manifest.dataset: step for step in self.steps if step.manifest.stage == "normalize"}


def steps_behind(target: str) -> Behind:
    """Find a step, or the last step of a dataset's current run, and all steps from which it was made. Raises
    NotFoundError if the step is not finished. Raises UsageError if `target` is neither a step nor a dataset, if nothing
    records which step of the dataset is current, if the step was not made from normalized texts, or if an upstream step
    is missing (for example because `target` is a copy of a single step).
    """
    found = finished_step(urls.absolute(target))
    if found is None:
        raise UsageError(f"{target} has no finished step; give the directory of a dataset or a step")
    last, beside = Finished(*found[:2]), found[2]
    steps = tuple(_walk(last, set()))
    identities = {step.manifest.identity for step in steps}
    published, searched = (
        Finished(*found) if (found := find(urls.absolute(target), identities)) is not None else None
        for find in (published_step, unread_passages)
    )
    known = {step.directory for step in (*steps, published, searched) if step is not None}
    behind = Behind(last, steps, tuple(sorted({*beside} - known)), published, searched)
    if not behind.normalized:
        raise UsageError(f"{target} was not made from normalized texts; give a dataset or a step that was")
    return behind


def _walk(step: Finished, seen: set[str]) -> Iterator[Finished]:
    """Yield a step and all steps upstream of it, depth first and each once."""
    yield step
    for reference in step.manifest.inputs:
        directory = urls.parent(step.url(reference.path))
        if directory in seen:
            continue
        seen.add(directory)
        manifest = find_manifest(directory)
        if manifest is None or manifest.identity != reference.identity:
            raise UsageError(
                f"{step.directory} was made from {reference.stage} {reference.identity}, which is not in {directory}; "
                "if you gave a copy of a single step, give the original step instead"
            )
        yield from _walk(Finished(directory, manifest), seen)
