"""Finds the annotate steps that a target stands for, and lists their files. Only manifests are read.

A target is an annotate step (its directory or manifest), a dataset, whose annotate steps `latest.json` names, or the
directory of a source with one finished annotate step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from datakit.errors import CorruptError, NotFoundError, UsageError, suggestion
from datakit.pipeline.root_layout import STEP_NAME, steps_in
from datakit.storage import urls
from datakit.storage.latest import current_attributes, only_finished
from datakit.storage.manifest import FILE_NAME, Manifest, data_path, find_manifest, read_manifest

STAGE, NORMALIZE = "annotate", "normalize"
ADVICE = "give an annotate step's directory, such as data/sources/novels/annotate-0123456789ab, or a dataset's"


@dataclass(frozen=True)
class AttributeFile:
    """One file of an annotator's table. rows: the number of rows that the manifest states. texts: the URL of the
    normalized partition that holds the documents.
    """

    url: str
    source: str
    annotator: str
    rows: int
    texts: str


@dataclass(frozen=True)
class Annotated:
    """One or several annotate steps. documents: how many were annotated. files: in the order of sources, annotators and
    partitions.
    """

    directories: tuple[str, ...]
    documents: int
    files: tuple[AttributeFile, ...]

    @property
    def sources(self) -> list[str]:
        """The sources of the files."""
        return list(dict.fromkeys(file.source for file in self.files))

    def select(self, keep: Callable[[AttributeFile], bool]) -> list[AttributeFile]:
        """Return the files for which `keep` is true."""
        return [file for file in self.files if keep(file)]


def annotated(target: str, source: str | None = None) -> Annotated:
    """Return the annotate steps that a target stands for or, with `source`, only the step of this source. Raises
    NotFoundError, UsageError, or CorruptError if a manifest is damaged.
    """
    found = steps_of(urls.absolute(target))
    sources = {part.source for _, manifest in found for part in manifest.partitions}
    if source is not None and source not in sources:
        raise UsageError(f"--source {source}: {target} has no attributes of it; {suggestion(source, sources)}")
    chosen = [(place, one) for place, one in found if source is None or source in one.by_source]
    files = tuple(file for place, manifest in chosen for file in _files(place, manifest))
    documents = sum(manifest.counters.get("annotate/documents", 0) for _, manifest in chosen)
    return Annotated(tuple(place for place, _ in chosen), documents, files)


def steps_of(place: str) -> list[tuple[str, Manifest]]:
    """Return the directory and manifest of each annotate step at a URL; see the module's docstring for the errors."""
    place = urls.parent(place) if urls.name(place) == FILE_NAME else place
    manifest = find_manifest(place)
    if manifest is not None:
        if manifest.stage != STAGE:
            raise UsageError(f"{place} is a step of the stage {manifest.stage}; {ADVICE}")
        return [(place, manifest)]
    if STEP_NAME.fullmatch(urls.name(place)):
        raise NotFoundError(f"{place} is not a finished step; `datakit status {place}` shows its tasks")
    if found := current_attributes(place):
        return found
    steps = [step for step in steps_in(place) if urls.parent(step) == place and _stage(step) == STAGE]
    step = only_finished(place, [step for step in steps if urls.exists(urls.join(step, FILE_NAME))])
    if step is None:
        raise NotFoundError(f"{place} has no finished annotate step; {ADVICE}, or run a recipe that has [annotate]")
    return [(step, read_manifest(step))]


def _stage(step: str) -> str:
    return urls.name(step).rpartition("-")[0]


def _files(place: str, manifest: Manifest) -> list[AttributeFile]:
    inputs = [entry for entry in manifest.inputs if entry.stage == NORMALIZE]
    if len(inputs) != 1:
        raise CorruptError(f"{place}: its manifest names {len(inputs)} normalize steps, not one; run the recipe again")
    texts, found = urls.parent(urls.join(place, inputs[0].path)), list[AttributeFile]()
    for part in manifest.partitions:
        folder, _, name = part.path.rpartition("/")
        annotator = folder.rpartition("/")[2]
        if folder != data_path(part.source, annotator):
            raise CorruptError(f"{place}: {part.path} is not the path of a table; run the recipe again")
        home = urls.join(texts, data_path(part.source, name))
        found.append(AttributeFile(urls.join(place, part.path), part.source, annotator, part.rows, home))
    return found
