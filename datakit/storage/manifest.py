"""Defines the fields and the encoding of `manifest.json`, a step's typed result, and reads and writes it.

The manifest is written last, so a step without a manifest is unfinished. It is the only file in a step's directory on
which other steps and programs may rely. Its keys are sorted, its paths are relative to its own directory, and it
contains no time, host or library version (the ledger has those), so a step's manifest has the same bytes everywhere.
Every counter that a reader needs is a required field: a missing counter is an error, never a zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from datakit.errors import CorruptError, NotFoundError
from datakit.storage import atomic, urls
from datakit.storage.fingerprint import canonical_json

FORMAT = "datakit.manifest/1"
FILE_NAME = "manifest.json"
PARTIAL_NAME = "partial.json"
PIECE = 1000  # number of partitions that are encoded at a time


class Column(msgspec.Struct, frozen=True):
    """A column of the step's partitions: its name and its Arrow type as text."""

    name: str
    type: str


class InputReference(msgspec.Struct, frozen=True):
    """An upstream step: its stage, its identity, and the path of its manifest relative to this manifest's directory."""

    stage: str
    path: str
    identity: str


class Partition(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of the output. Sizes are in bytes; `text_bytes` and `tokens` are set only if the stage counts them."""

    path: str
    source: str
    rows: int
    bytes: int
    xxh3: str
    text_bytes: int | None = None
    tokens: int | None = None
    first_id: str | None = None
    last_id: str | None = None


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


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step's result. `details` holds data that only this stage's readers need, in the stage's own format."""

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

    def partitions_of(self, source: str) -> list[Partition]:
        """Return the partitions of one source, in order."""
        return [partition for partition in self.partitions if partition.source == source]


def totals_of(partitions: list[Partition]) -> Totals:
    """Sum each field over `partitions`; a field that any partition lacks is None."""
    totals: list[Any] = []
    for field in Totals.__struct_fields__:
        values = [getattr(partition, field) for partition in partitions]
        totals.append(None if None in values else sum(values))
    return Totals(*totals)


def pieces(manifest: Manifest) -> Iterator[bytes]:
    """Yield the manifest as canonical JSON, indented for human readers; equal manifests give equal bytes. PIECE
    partitions are encoded at a time: encoding and indenting 100,000 at once would determine the driver's peak memory.
    """
    plain = msgspec.to_builtins(msgspec.structs.replace(manifest, partitions=[])) | {"format": manifest.format}
    frame = msgspec.json.format(canonical_json(plain), indent=1) + b"\n"
    if not manifest.partitions:
        yield frame
        return
    before, after = frame.split(b'\n "partitions": []')  # unique: only top-level keys follow a line feed and one space
    yield before + b'\n "partitions": ['
    for start in range(0, len(manifest.partitions), PIECE):
        some = msgspec.json.encode(manifest.partitions[start : start + PIECE], order="sorted")
        # Remove the list's brackets, and indent the lines one level deeper.
        lines = msgspec.json.format(some, indent=1)[1:-2].replace(b"\n", b"\n ")
        yield b"," + lines if start else lines
    yield b"\n ]" + after


def decode(data: bytes, url: str) -> Manifest:
    """Decode a manifest. Raises CorruptError if it cannot be parsed or has a different format."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise CorruptError(f"{url} is not a manifest that this version can read: {error}") from error
    if manifest.format != FORMAT:
        raise CorruptError(f"{url} has format {manifest.format!r}; this version reads {FORMAT!r}")
    return manifest


def manifest_url(directory: str) -> str:
    """Return the URL of the manifest in a step's directory."""
    return urls.join(directory, FILE_NAME)


def read_manifest(directory: str) -> Manifest:
    """Read the manifest in a step's directory. Raises NotFoundError if the step is unfinished."""
    url = manifest_url(directory)
    return decode(urls.read_bytes(url), url)


def find_manifest(directory: str) -> Manifest | None:
    """Return the manifest, or None if the step is unfinished or was never started."""
    try:
        return read_manifest(directory)
    except NotFoundError:
        return None


def write_manifest(manifest: Manifest, directory: str) -> None:
    """Create the manifest, which completes the step. Raises DivergentOutputError if a different one exists."""
    url = manifest_url(directory)
    with atomic.staging(url) as path:
        with path.open("wb") as file:
            file.writelines(pieces(manifest))
        atomic.commit_file(path, url)
