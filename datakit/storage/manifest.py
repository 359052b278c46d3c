"""Defines, reads and writes `manifest.json`, which describes a step's result.

The manifest is written last, so a step without a manifest is unfinished. It is the only file through which other steps
and programs find a step's output. Its keys are sorted, its paths are relative to its own directory, and it contains no
time, host or library version (the ledger has those) except the version of a cache's encoder, so a step's manifest does
not depend on the machine. Every counter that a reader needs is a required field: a missing counter is an error and is
never taken for zero.

A manifest holds its own checksum: the xxh3-128 of its bytes without the line that holds the checksum. The checksum is
verified whenever a manifest is read. Manifests of format 1 can still be read, although they lack their own checksum,
the step's format version, the checksums of the inputs' manifests, and the field `files`.

Two versions of datakit may use one root. A reader ignores fields that it does not know, so a field may be added to a
format only if a reader that ignores it still understands everything else correctly. Any other change needs a new format
number, which earlier versions refuse. Every version keeps the top-level field `format`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import msgspec
import xxhash

from datakit.errors import CorruptError, NewerFormatError, NotFoundError
from datakit.storage import atomic, json_data, urls
from datakit.storage.fingerprint import canonical_json, fingerprint
from datakit.storage.manifest_paths import check_input, check_paths

FORMAT = "datakit.manifest/2"
UNSEALED = "datakit.manifest/1"  # the earlier format, without checksums of manifests
FILE_NAME = "manifest.json"
PARTIAL_NAME = "partial.json"
DATA_FOLDER = "data"
PIECE = 1000  # maximum number of partitions or files that are encoded at a time
NUMBERED = re.compile(r"(datakit\.[a-z]+)/([0-9]{1,9})")  # the name and the number of a file format
CHECKSUM_LINE = re.compile(rb'\n "checksum": "[0-9a-f]{32}",')  # the line after the `{`, because keys are sorted


class Column(msgspec.Struct, frozen=True):
    """A column of the step's partitions: its name, and its Arrow type as a string."""

    name: str
    type: str


class InputReference(msgspec.Struct, frozen=True, omit_defaults=True):
    """An upstream step: its stage, its identity, and the path of its manifest relative to the directory of the manifest
    that holds this reference.

    checksum: the checksum of the upstream step's manifest; empty in format 1. covered: True if this identity is part of
    the fingerprint of the step that has this input; otherwise, that step's parameters determine what it reads.
    """

    stage: str
    path: str
    identity: str
    checksum: str = ""
    covered: bool = True


class Partition(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of a step's output. bytes, xxh3: the size and the xxh3-128 of the file. text_bytes, tokens: the numbers
    of bytes of text and of tokens in the file, set only if the stage counts them. first_id, last_id: the first and the
    last id in the file, if the stage records them. copy: the path of an object's copy in the step's directory of
    copies; set only in a download, and only if the object's key (`path`) cannot be the path of a file. bucket: the
    document bucket whose documents the file holds; set only in a token cache, and only if the source is divided.
    version: the version of a file that its server stated when it was listed; set only in a download.
    """

    path: str
    source: str
    rows: int
    bytes: int
    xxh3: str
    text_bytes: int | None = None
    tokens: int | None = None
    first_id: str | None = None
    last_id: str | None = None
    copy: str | None = None
    bucket: str | None = None
    version: str | None = None

    @property
    def place(self) -> str:
        """The path of the file on the disk or in the store."""
        return self.copy or self.path


class StepFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that belongs to no partition, such as a dataset card or a list of duplicates."""

    path: str
    bytes: int
    xxh3: str
    rows: int = 0


class Totals(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sums over all partitions."""

    rows: int
    bytes: int
    text_bytes: int | None = None
    tokens: int | None = None


class Quarantine(msgspec.Struct, frozen=True):
    """The number of records that could not be processed, and the directory that holds a list of them."""

    records: int
    path: str = "quarantine/"


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """A step's result. `details` holds data, in the stage's own format, that only readers of the stage's output need.

    version: the stage's format version, which the fingerprint covers; None in format 1. files: all files except those
    that the partitions (or `details`) describe. checksum: the checksum of this manifest's bytes without the line that
    holds the checksum; in format 1, of all bytes. model_answers: the hash of the answers of model servers that the step
    has used, which the identity covers; empty for a step without such answers.
    """

    stage: str
    dataset: str
    fingerprint: str
    identity: str
    parameters: dict[str, Any]
    inputs: list[InputReference]
    schema: list[Column]
    partitions: list[Partition]
    totals: Totals
    counters: dict[str, int]
    quarantine: Quarantine
    details: dict[str, Any] = {}
    format: str = FORMAT
    version: int | None = None
    files: list[StepFile] = []
    checksum: str = ""
    model_answers: str = ""

    def partitions_of(self, source: str) -> list[Partition]:
        """Return the partitions of one source, in order."""
        return list(self.by_source.get(source, ()))

    @cached_property
    def by_source(self) -> dict[str, list[Partition]]:
        """The partitions of each source, in order. Computed once, because a step may have thousands of sources."""
        return grouped(self.partitions)

    @cached_property
    def files_by_path(self) -> dict[str, StepFile]:
        """The files that belong to no partition, by path."""
        return {file.path: file for file in self.files}


def data_path(source: str, name: str) -> str:
    """Return the path, in a step's directory, of a source's output file (or shard) `name`.

    Nothing else lies below `data/`, so no name of a source can collide with a file or folder of the step itself.
    """
    return f"{DATA_FOLDER}/{source}/{name}"


def table_path(source: str, annotator: str, name: str) -> str:
    """Return the path, in an annotate step's directory, of an annotator's table for the partition file `name`."""
    return f"{DATA_FOLDER}/{source}/{annotator}/{name}"


def grouped(partitions: Iterable[Partition]) -> dict[str, list[Partition]]:
    """Return the partitions of each source, in order."""
    found: dict[str, list[Partition]] = {}
    for partition in partitions:
        found.setdefault(partition.source, []).append(partition)
    return found


def totals_of(partitions: list[Partition]) -> Totals:
    """Return the sum of each field over `partitions`, or None for a field that any partition lacks."""
    totals: list[Any] = []
    for field in Totals.__struct_fields__:
        values = [getattr(partition, field) for partition in partitions]
        totals.append(None if None in values else sum(values))
    return Totals(*totals)


def pieces(manifest: Manifest) -> Iterator[bytes]:
    """Yield the manifest as canonical JSON, indented for human readers; equal manifests give equal bytes. At most PIECE
    partitions or files are encoded at a time, because encoding and indenting 100,000 of them at once would determine
    the driver's peak memory.
    """
    lists = {name: entries for name in ("files", "partitions") if (entries := getattr(manifest, name))}
    plain = msgspec.to_builtins(msgspec.structs.replace(manifest, partitions=[], files=[]))
    plain |= {"format": manifest.format} | {name: [] for name in lists}
    rest = msgspec.json.format(canonical_json(plain), indent=1) + b"\n"
    for name, entries in lists.items():
        # There is exactly one match, because only top-level keys follow a line feed and a single space.
        before, rest = rest.split(b'\n "%s": []' % name.encode())
        yield before + b'\n "%s": [' % name.encode()
        for start in range(0, len(entries), PIECE):
            some = msgspec.json.encode(entries[start : start + PIECE], order="sorted")
            # Remove the list's brackets, and indent the lines one level deeper.
            lines = msgspec.json.format(some, indent=1)[1:-2].replace(b"\n", b"\n ")
            yield b"," + lines if start else lines
        yield b"\n ]"
    yield rest


def sealed(manifest: Manifest) -> Manifest:
    """Return a copy of the manifest with its checksum in the field `checksum`."""
    digest = xxhash.xxh3_128()
    for piece in pieces(msgspec.structs.replace(manifest, checksum="")):
        digest.update(piece)
    return msgspec.structs.replace(manifest, checksum=digest.hexdigest())


def computed_fingerprint(manifest: Manifest) -> str | None:
    """Return the fingerprint computed from the other fields of the manifest, or None for a manifest of format 1."""
    if manifest.version is None:
        return None
    inputs = [entry.identity for entry in manifest.inputs if entry.covered]
    return fingerprint(manifest.stage, manifest.version, manifest.parameters, inputs)


class _Format(msgspec.Struct, frozen=True):
    format: str = ""


def decode(data: bytes, url: str) -> Manifest:
    """Decode a manifest. Raises NewerFormatError if a newer version wrote it, and CorruptError if the data cannot be
    parsed, was altered, has an unknown format, or names a file outside of the step.
    """
    try:
        manifest = json_data.decode(data, Manifest)
    except msgspec.DecodeError as error:
        refuse_newer(data, url, FORMAT)
        raise CorruptError(f"{url} is not a manifest that this version can read: {error}") from error
    if manifest.format not in (FORMAT, UNSEALED):
        refuse_newer(data, url, FORMAT)
        raise CorruptError(
            f"{url} has format {manifest.format!r}, but this version of datakit reads only {FORMAT!r} and {UNSEALED!r}"
        )
    checksum = _checksum(data)
    if manifest.format == FORMAT and manifest.checksum != checksum:
        raise CorruptError(
            f"{url} was altered after it was written: its checksum is {checksum}, but the file states "
            f"{manifest.checksum!r}; restore the file, or remove its directory and run again"
        )
    _check_paths(manifest, url)
    return msgspec.structs.replace(manifest, checksum=checksum)


def refuse_newer(data: bytes, url: str, known: str) -> None:
    """Raise NewerFormatError if the JSON object in `data` has a newer format than `known`."""
    with contextlib.suppress(msgspec.DecodeError):
        require_not_newer(json_data.decode(data, _Format).format, url, known)


def require_not_newer(found: str, url: str, known: str) -> None:
    """Raise NewerFormatError if the format `found` has the name of the format `known`, but a higher number."""
    one, other = NUMBERED.fullmatch(found), NUMBERED.fullmatch(known)
    if one and other and one[1] == other[1] and int(one[2]) > int(other[2]):
        raise NewerFormatError(
            f"{url} was written by a newer version of datakit (its format is {found}; this version reads {known}); use "
            "that version, or another root, and keep the file: that version needs it"
        )


def _check_paths(manifest: Manifest, url: str) -> None:
    check_paths(url, [manifest.quarantine.path.rstrip("/")])
    check_paths(url, (partition.place for partition in manifest.partitions))
    check_paths(url, (file.path for file in manifest.files))
    for reference in manifest.inputs:
        check_input(url, reference.path, reference.covered, FILE_NAME)


def _checksum(data: bytes) -> str:
    line = CHECKSUM_LINE.match(data, 1)
    digest = xxhash.xxh3_128(data[:1])
    digest.update(memoryview(data)[line.end() if line else 1 :])
    return digest.hexdigest()


def manifest_url(directory: str) -> str:
    """Return the URL of the manifest in a step's directory."""
    return urls.join(directory, FILE_NAME)


def read_manifest(directory: str) -> Manifest:
    """Read the manifest in a step's directory. Raises NotFoundError if the step is unfinished."""
    url = manifest_url(directory)
    return decode(urls.read_bytes(url), url)


def is_finished(directory: str) -> bool:
    """Return True if a step's directory holds a manifest, even one that this version cannot read."""
    return urls.exists(manifest_url(directory))


def find_manifest(directory: str) -> Manifest | None:
    """Return the manifest in a step's directory, or None if the step is unfinished or was never started."""
    try:
        return read_manifest(directory)
    except NotFoundError:
        return None


def write_manifest(manifest: Manifest, directory: str) -> Manifest:
    """Create the manifest, which completes the step, and return it with its checksum.

    Raises DivergentOutputError if a different manifest exists.
    """
    url, complete = manifest_url(directory), sealed(manifest)
    _check_paths(complete, url)  # what `decode` refuses must not be written
    with atomic.staging(url) as path:
        with path.open("wb") as file:
            file.writelines(pieces(complete))
        atomic.commit_file(path, url)
    atomic.sync_directories([directory, urls.parent(directory)])
    return complete
