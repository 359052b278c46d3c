"""Finds what is to be published: a dataset's consolidate step, with its lineage, its licenses and what is known about
personal data in it.

Cost: one read of each manifest of the lineage, and of one Parquet footer per source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from datakit.errors import NotFoundError, UsageError
from datakit.lineage import Lineage, read_lineage
from datakit.lineage.croissant import documents_step
from datakit.pipeline.columns import columns_by_source
from datakit.pipeline.root_layout import STEP_NAME
from datakit.publish.licenses import require_licenses
from datakit.publish.personal_data import PersonalData, personal_data
from datakit.storage import urls
from datakit.storage.latest import SOURCES, current_attributes, read_latest
from datakit.storage.manifest import Column, Manifest, read_manifest

STAGE = "consolidate"
READ_BY_STAGE = ("rules", "select")  # the stages whose parameters say what becomes of personal data


@dataclass(frozen=True)
class Documents:
    """The documents to publish. root: the root that holds the step; "" if its directory is in none. sources: in the
    order of the dataset. licenses, columns: by source.
    """

    directory: str
    root: str
    manifest: Manifest
    lineage: Lineage
    sources: tuple[str, ...]
    licenses: Mapping[str, str]
    columns: Mapping[str, list[Column]]
    personal: tuple[PersonalData, ...]

    @property
    def dataset(self) -> str:
        """The name of the dataset."""
        return self.manifest.dataset


def find_documents(target: str) -> Documents:
    """Return the documents of a dataset, or of a consolidate step. Raises UsageError if there is no finished
    consolidate step, and LicenseError if the license of a source cannot be stated.
    """
    place = urls.absolute(target)
    step = documents_step(read_lineage(place))
    if step.stage != STAGE:
        raise UsageError(
            f"{place} has no finished step of the stage {STAGE}, which writes the documents to publish; run its recipe "
            "again without `[consolidate] write = false`, and give the directory of the dataset"
        )
    manifest, lineage = read_manifest(step.directory), read_lineage(step.directory)
    sources = tuple(manifest.by_source)
    home = urls.parent(step.directory)
    return Documents(
        directory=step.directory,
        root=_root_above(step.directory),
        manifest=manifest,
        lineage=lineage,
        sources=sources,
        licenses=require_licenses(sources, _licenses(lineage, home)),
        columns=columns_by_source(step.directory, manifest),
        personal=tuple(personal_data(sources, _annotations(lineage, home), _manifests(lineage, *READ_BY_STAGE))),
    )


def _licenses(lineage: Lineage, home: str) -> dict[str, str | None]:
    """Return the licenses of the sources: those of the lineage, and those that the dataset's last complete run
    recorded, which are known even if a source's download is gone.
    """
    latest = read_latest(home)
    found: dict[str, str | None] = dict(latest.licenses) if latest else {}
    return found | {source.name: source.license for source in lineage.sources if source.license}


def _annotations(lineage: Lineage, home: str) -> list[Manifest]:
    """Return the manifests of the annotate steps: those from which the documents were made, or else those of the
    dataset's last complete run, whose attributes nothing may have read.
    """
    found = _manifests(lineage, "annotate")
    known = {one.dataset for one in found}
    return [*found, *(one for _, one in current_attributes(home) if one.dataset not in known)]


def _manifests(lineage: Lineage, *stages: str) -> list[Manifest]:
    missing = next((step for step in lineage.steps if step.stage in (*stages, "annotate") and not step.found), None)
    if missing is not None:
        raise NotFoundError(
            f"{missing.directory} holds no manifest of the step {missing.identity}, so what became of personal data is "
            "not known; give the dataset in the root in which it was made, or run its recipe again"
        )
    return [read_manifest(step.directory) for step in lineage.steps if step.stage in stages]


def _root_above(directory: str) -> str:
    root = urls.parent(urls.parent(directory))
    inside = STEP_NAME.fullmatch(urls.name(directory)) and urls.listing(urls.join(root, SOURCES))
    return root if inside else ""
