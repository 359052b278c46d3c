"""Describes the step that is being checked, and the steps from which it was made, as far as they can be read.

A step may be moved without its inputs, so a missing input is no difference in itself. If a whole dataset or root is
checked, the inputs belong to it, and a missing one is a difference (`between/inputs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any, Protocol, TypeVar

from datakit.cache.layout import STAGE, CacheDetails, read_details
from datakit.errors import CorruptError, DatakitError, NewerFormatError, NotFoundError
from datakit.storage import urls
from datakit.storage.manifest import InputReference, Manifest, Partition, manifest_url, read_manifest

WORKERS = 2  # each holds the row groups that it decodes: about 40 MB
READERS = 4  # threads that read files only to hash them
DOWNLOAD, TRAIN = "download", "train"
FOLDERS = {DOWNLOAD: "raw", TRAIN: "checkpoints"}  # where the partitions of these stages lie
T = TypeVar("T")
R = TypeVar("R")


class Texts(Protocol):
    """The texts that later checks need, which `between/text_store.py` keeps."""

    def add(self, url: str, place: tuple[int, int], ids: Any, table: Any) -> None:
        """Keep what is wanted of a row group."""

    def finish(self, url: str) -> None:
        """Record that a whole file was read without a difference."""

    def texts(self, url: str, wanted: Any) -> Iterator[tuple[Any, Any]] | None:
        """Return the wanted documents of a file, or None."""

    def sample(self, url: str, number: int) -> list[tuple[str, str]] | None:
        """Return the sample of a file, or None."""


@dataclass(frozen=True)
class Input:
    """A step from which the subject was made. manifest: None if it cannot be read; `problem` then says why, and is ""
    if there is no such file. outside: True if the step was not opened because the manifest names it by an absolute path
    or a URL, as that of a training run may do.
    """

    reference: InputReference
    directory: str
    manifest: Manifest | None
    problem: str = ""
    outside: bool = False

    def url(self, partition: Partition) -> str:
        """Return the URL of one of the input's files."""
        return urls.join(self.directory, partition.place)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that the checks of all steps share, and what they have found so far. deep, training_step: as in
    `validate`. whole: True if a dataset or a root is checked. broken: the URLs of files that differ from their
    checksums, of all steps checked so far. texts: the texts that later checks need; None if they are read again.
    """

    deep: bool = False
    whole: bool = False
    training_step: int | None = None
    broken: set[str] = field(default_factory=set)
    texts: Texts | None = None


@dataclass(frozen=True)
class Subject(Settings):
    """A finished step to check. details: the part of a token cache's manifest that describes its arrays; None for
    other stages, and if it contradicts the rest of the manifest.
    """

    directory: str
    manifest: Manifest
    inputs: tuple[Input, ...]
    details: CacheDetails | None = None

    @property
    def finished(self) -> bool:
        """Return True unless this is a training run without a manifest, which has no identity yet."""
        return bool(self.manifest.identity)

    @property
    def manifest_url(self) -> str:
        """The URL of the step's manifest."""
        return manifest_url(self.directory)

    def url(self, path: str) -> str:
        """Return the URL of a file in the step's directory."""
        return urls.join(self.directory, path)

    def place(self, partition: Partition) -> str:
        """Return the URL of a partition's file."""
        return urls.join(self.directory, FOLDERS.get(self.manifest.stage, ""), partition.place)

    def inputs_of(self, stage: str) -> list[tuple[Input, Manifest]]:
        """Return the inputs of a stage that can be read, with their manifests, in the order of the manifest."""
        return [(one, one.manifest) for one in self.inputs if one.reference.stage == stage and one.manifest is not None]

    def missing(self, stage: str) -> str:
        """Return why the inputs of a stage cannot be compared, or "" if all of them can be read."""
        lost = [one for one in self.inputs if one.reference.stage == stage and one.manifest is None]
        return f"{manifest_url(lost[0].directory)} cannot be read" if lost else ""

    def sound(self, *places: str) -> bool:
        """Return True if none of these files differs from its checksum."""
        return not self.broken.intersection(places)


def open_subject(directory: str, manifest: Manifest, settings: Settings | None = None) -> tuple[Subject, str]:
    """Return a step with its inputs and, if it is a token cache, the contradiction in its manifest, "" if there is
    none.
    """
    settings = settings or Settings()
    details, problem = None, ""
    if manifest.stage == STAGE:
        try:
            details = read_details(directory, manifest)
        except CorruptError as error:
            problem = str(error)
    follow = settings.deep or settings.training_step is not None
    inputs = tuple(_input(directory, reference, follow) for reference in manifest.inputs)
    shared = {one.name: getattr(settings, one.name) for one in fields(Settings)}
    return Subject(directory, manifest, inputs, details, **shared), problem


def _input(directory: str, reference: InputReference, follow: bool) -> Input:
    """Read the manifest of an input. A manifest may come from a stranger, so an absolute path or a URL in it is opened
    only if `follow` is true, that is, with --deep or --training-step.
    """
    absolute = is_outside(reference)
    place = urls.parent(reference.path if absolute else urls.join(directory, reference.path))
    if absolute and not follow:
        return Input(reference, place, None, outside=True)
    try:
        return Input(reference, place, read_manifest(place))
    except NotFoundError:
        return Input(reference, place, None)
    except (CorruptError, NewerFormatError) as error:
        return Input(reference, place, None, str(error))
    except DatakitError as error:  # another store, which may be out of reach
        return Input(reference, place, None, str(error))


def is_installed(library: str) -> bool:
    """Return True if a library can be imported on this machine."""
    try:
        import_module(library)
    except ModuleNotFoundError:
        return False
    return True


def is_outside(reference: InputReference) -> bool:
    """Return True if a reference is an absolute path or a URL, as in the manifest of a training run."""
    return reference.path.startswith("/") or urls.SPLITTER in reference.path


def in_parallel(function: Callable[[T], R], things: Iterable[T]) -> Iterator[R]:
    """Yield the result of `function` for each thing, in order, computed in WORKERS threads."""
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="datakit-validate") as pool:
        yield from pool.map(function, list(things))
