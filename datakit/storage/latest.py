"""Records a dataset's current steps in `<root>/<dataset>/latest.json`, and resolves the dataset's directory to them.

A complete run replaces the file atomically (by a rename on a disk, by one PUT in an object store). The file serves
people who name a dataset instead of a step. It also tells `datakit gc` which steps to keep, and holds the licenses of
the sources. It is not part of any fingerprint, and code that has resolved a dataset uses only the step's directory from
then on. Of two runs that end at the same time, either may be recorded. If a dataset lacks the file because an earlier
version made the dataset, a stage's finished step is found if it is the only one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from datakit.errors import CorruptError, NewerFormatError, NotFoundError, UsageError
from datakit.storage import atomic, urls
from datakit.storage.globs import subdirectories
from datakit.storage.json_data import decode
from datakit.storage.manifest import FILE_NAME as MANIFEST_NAME
from datakit.storage.manifest import Manifest, find_manifest, refuse_newer

FILE_NAME = "latest.json"
FORMAT = "datakit.latest/4"
WITHOUT_PASSAGES = "datakit.latest/3"  # the format without the field `passages`; used if there is no such step
WITHOUT_ATTRIBUTES = "datakit.latest/2"  # the format without the field `attributes` as well; used if there are none
WITHOUT_DOCUMENTS = "datakit.latest/1"  # the format without the field `documents` as well; used if there are neither
FORMATS = (FORMAT, WITHOUT_PASSAGES, WITHOUT_ATTRIBUTES, WITHOUT_DOCUMENTS)
SOURCES = "sources"  # the directory in the root that holds the steps of sources
CACHE_STAGE = "tokenize"
DOCUMENTS_STAGE = "consolidate"
SHOWN = 5  # maximum number of steps that a message names


class Current(msgspec.Struct, frozen=True):
    """A step: the name of its directory within the dataset's directory, and its identity."""

    directory: str
    identity: str


class Latest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of `latest.json`. step: the last step of the last complete run. cache: the last token cache, which is
    from an earlier run if the last complete run ended before tokenize; None if there is no cache. documents: the
    consolidate step of the run that made `cache`, or of a later run that ended with train-tokenizer; None if there is
    no such step. `cache` was not made from it, so a version that ignores this field would remove the consolidate step;
    therefore the format with this field has a new number. attributes: for each source, the annotate step of the last
    complete run. No other step is made from it either, so this field, too, has a format of its own. passages: the
    passages step of the last complete run, if no other step is made from it; it, too, has a format of its own.
    licenses: the licenses that the recipe of the last complete run gives, by source.
    """

    step: Current
    cache: Current | None
    documents: Current | None = None
    licenses: dict[str, str] = {}
    attributes: dict[str, Current] = {}
    passages: Current | None = None
    format: str = ""

    def own_steps(self) -> list[Current]:
        """Return the recorded steps in the dataset's directory."""
        steps = (self.step, self.cache, self.documents, self.passages)
        return [step for step in steps if step is not None]

    def attribute_steps(self) -> list[tuple[str, Current]]:
        """Return each annotate step with its path in the root."""
        return [(urls.join(SOURCES, source, step.directory), step) for source, step in self.attributes.items()]


@dataclass(frozen=True)
class SourceRecords:
    """The licenses and the annotate steps of sources, by name. Sources without one are absent."""

    licenses: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Current] = field(default_factory=dict)


def record_latest(
    dataset: str,
    step: Current,
    cache: Current | None,
    sources: SourceRecords | None = None,
    documents: Current | None = None,
    *,
    passages: Current | None = None,
) -> str:
    """Record a complete run's last step, token cache and consolidate step (`documents`, unless it is the last step),
    the licenses and annotate steps of its sources, and its passages step (`passages`, unless another step is made from
    it), unless all are already recorded. If `cache` is None, the
    recorded cache and consolidate step are kept. If a newer version of datakit wrote the file, record nothing and
    return a message for the user; otherwise, return "".
    """
    url = urls.join(dataset, FILE_NAME)
    try:
        before = read_latest(dataset)
    except NewerFormatError as error:
        return f"{urls.join(dataset, step.directory)} is not recorded as current: {error}"
    except CorruptError:  # this run replaces the damaged file
        before = None
    if cache is None and before is not None:
        cache, documents = before.cache, documents or before.documents
    sources = sources or SourceRecords()
    version = WITHOUT_PASSAGES if sources.attributes else WITHOUT_ATTRIBUTES if documents else WITHOUT_DOCUMENTS
    version = FORMAT if passages else version
    latest = Latest(step, cache, documents, dict(sources.licenses), dict(sources.attributes), passages, version)
    if latest != before:
        atomic.replace_bytes(msgspec.json.format(msgspec.json.encode(latest, order="sorted"), indent=1) + b"\n", url)
    return ""


def read_latest(dataset: str) -> Latest | None:
    """Return what is recorded for a dataset; None if nothing is recorded. Raises CorruptError if the record cannot be
    read, and NewerFormatError if a newer version wrote it.
    """
    url = urls.join(dataset, FILE_NAME)
    try:
        data = urls.read_bytes(url)
    except NotFoundError:
        return None
    refuse_newer(data, url, FORMAT)
    try:
        latest = decode(data, Latest)
    except msgspec.DecodeError as error:
        raise CorruptError(
            f"{url} cannot be read: {error}; run the recipe again, or name a step's directory"
        ) from error
    if latest.format not in FORMATS:
        raise CorruptError(
            f"{url} has format {latest.format!r}, but this version of datakit reads only "
            f"{', '.join(map(repr, FORMATS))}; name the directory of a step instead of the dataset"
        )
    named = [step.directory for step in latest.own_steps()]
    for name in (*named, *latest.attributes, *(step.directory for step in latest.attributes.values())):
        if not urls.is_below(name) or "/" in name:
            raise CorruptError(
                f"{url} names {name!r}, which is not the directory of a step or a source; run the recipe "
                "again, or name a step's directory"
            )
    return latest


def current_step(dataset: str) -> tuple[str, Manifest] | None:
    """Return the directory and manifest of the last step of a dataset's last complete run; None if no run is recorded.

    Raises NotFoundError if that step is gone, and CorruptError if the record or the manifest is damaged.
    """
    latest = read_latest(dataset)
    return None if latest is None else _resolved(dataset, latest.step)


def current_cache(dataset: str) -> tuple[str, Manifest] | None:
    """Return the directory and manifest of a dataset's current token cache; None if it has no finished cache.

    Raises NotFoundError if the recorded cache is gone, UsageError if no cache is recorded and there are several, and
    CorruptError if the record or the manifest is damaged.
    """
    latest = read_latest(dataset)
    if latest is not None and latest.cache is not None:
        return _resolved(dataset, latest.cache)
    steps = [urls.join(dataset, name) for name in subdirectories(dataset) if name.startswith(f"{CACHE_STAGE}-")]
    found = only_finished(dataset, [step for step in steps if urls.exists(urls.join(step, MANIFEST_NAME))])
    manifest = found and find_manifest(found)
    return (found, manifest) if found and manifest else None


def current_documents(dataset: str) -> tuple[str, Manifest] | None:
    """Return the directory and manifest of the consolidate step that belongs to a dataset's current step but from which
    the current step was not made; None if there is none. If nothing is recorded for the dataset, return its only
    finished consolidate step, if there is exactly one. Raises NotFoundError if the recorded step is gone, and
    CorruptError if the record or the manifest is damaged.
    """
    latest = read_latest(dataset)
    if latest is not None:
        return None if latest.documents in (None, latest.step) else _resolved(dataset, latest.documents)
    steps = [urls.join(dataset, name) for name in subdirectories(dataset) if name.startswith(f"{DOCUMENTS_STAGE}-")]
    finished = [(step, manifest) for step in steps if (manifest := find_manifest(step)) is not None]
    return finished[0] if len(finished) == 1 else None


def current_attributes(dataset: str) -> list[tuple[str, Manifest]]:
    """Return the directory and manifest of each annotate step of a dataset's last complete run. Raises NotFoundError if
    one of them is gone, and CorruptError if the record or a manifest is damaged.
    """
    latest = read_latest(dataset)
    steps = latest.attribute_steps() if latest is not None else []
    return [_found(dataset, urls.join(urls.parent(dataset), path), current) for path, current in steps]


def current_passages(dataset: str) -> tuple[str, Manifest] | None:
    """Return the directory and manifest of the passages step of a dataset's last complete run, if no other step is made
    from it; otherwise None. Raises NotFoundError if it is gone, and CorruptError if the record or the manifest is
    damaged.
    """
    latest = read_latest(dataset)
    return _resolved(dataset, latest.passages) if latest is not None and latest.passages is not None else None


def only_finished(dataset: str, finished: list[str]) -> str | None:
    """Return the only entry of `finished`, the directories of a stage's finished steps; None if there is none. Raises
    UsageError if there are several.
    """
    if len(finished) > 1:
        names = ", ".join(urls.name(step) for step in finished[:SHOWN]) + (", ..." if len(finished) > SHOWN else "")
        raise UsageError(
            f"{dataset} holds {len(finished)} finished {urls.name(finished[0]).rpartition('-')[0]} steps, none of "
            f"which {FILE_NAME} records as current; name one of them ({names}), or run the recipe again"
        )
    return finished[0] if finished else None


def _resolved(dataset: str, current: Current) -> tuple[str, Manifest]:
    return _found(dataset, urls.join(dataset, current.directory), current)


def _found(dataset: str, directory: str, current: Current) -> tuple[str, Manifest]:
    manifest = find_manifest(directory)
    if manifest is None or manifest.identity != current.identity:
        problem = "is unfinished or missing" if manifest is None else f"has the identity {manifest.identity}"
        raise NotFoundError(
            f"{urls.join(dataset, FILE_NAME)} names {current.directory} with the identity {current.identity}, but that "
            f"step {problem}; run the recipe again, or name another step of {dataset}"
        )
    return directory, manifest
