"""Reads and writes `manifest.json`, a step's typed result. It is written last; a step without one is unfinished.

It is the only file in a step's directory that others may rely on. Its keys are sorted, its paths relative to its own
directory, and it contains no time, host or library version (those are in the ledger), so that a step has the same bytes
everywhere. Every counter that a reader needs is a required field: a missing one is an error, never a zero.
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
PIECE = 1000  # partitions encoded at once


class Column(msgspec.Struct, frozen=True):
    """A column of the step's partitions: its name and its Arrow type as text."""

    name: str
    type: str


class InputReference(msgspec.Struct, frozen=True):
    """An upstream step: its stage, the path of its manifest relative to ours, and the identity that was used."""

    stage: str
    path: str
    identity: str


class Partition(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of the output. Sizes are in bytes; `text_bytes` and `tokens` only if the stage has them."""

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
    """Number of records that could not be processed, and the directory with their list."""

    records: int
    path: str = "quarantine/"


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step's result. `details` holds what only readers of this stage need, in a format that the stage defines."""

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
    """Sum each field over `partitions`; a field that any of them lacks is None."""

    totals: list[Any] = []
    for field in Totals.__struct_fields__:
        values = [getattr(partition, field) for partition in partitions]
        totals.append(None if None in values else sum(values))
    return Totals(*totals)


def pieces(manifest: Manifest) -> Iterator[bytes]:
    """Encode as canonical JSON, indented for people; equal manifests give equal bytes.

    Encodes PIECE partitions at a time: encoding 100,000 at once, and again with indents, would determine the driver's
    peak memory.
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
        lines = msgspec.json.format(some, indent=1)[1:-2].replace(b"\n", b"\n ")  # one level deeper, without brackets
        yield b"," + lines if start else lines
    yield b"\n ]" + after


def decode(data: bytes, url: str) -> Manifest:
    """Decode a manifest. Raises CorruptError if it does not parse or has a different format."""
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
    """Read the manifest; None if the step is unfinished or was never started."""
    try:
        return read_manifest(directory)
    except NotFoundError:
        return None


def write_manifest(manifest: Manifest, directory: str) -> None:
    """Create the manifest, the last write of a step. Raises DivergentOutputError if a different one exists."""
    url = manifest_url(directory)
    with atomic.staging(url) as path:
        with path.open("wb") as file:
            file.writelines(pieces(manifest))
        atomic.commit_file(path, url)
