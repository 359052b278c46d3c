"""`manifest.json`: a step's typed result, written last; a step without one does not exist.

It is the one file that others may rely on: keys sorted, paths relative to its own directory, and no time, host or
library version in it (those are in the ledger), so that the same step gives the same bytes anywhere. Every counter that
a reader needs is a required field: a missing one is an error, never a zero.
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
PIECE = 1000  # partitions


class Column(msgspec.Struct, frozen=True):
    """A column of the step's partitions: its name and its Arrow type as text."""

    name: str
    type: str


class InputReference(msgspec.Struct, frozen=True):
    """An upstream step: which stage, where its manifest lies relative to ours, and which identity we built on."""

    stage: str
    path: str
    identity: str


class Partition(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of the output, in order. Sizes in bytes; `text_bytes` and `tokens` where the stage has them."""

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
    """Sums over the partitions."""

    rows: int
    bytes: int
    text_bytes: int | None = None
    tokens: int | None = None


class Quarantine(msgspec.Struct, frozen=True):
    """Records that could not be processed: how many, and the directory that lists them."""

    records: int
    path: str = "quarantine/"


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """See the module. `details` holds what only this stage's readers need, in a form of the stage's own."""

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
        """The partitions of one source, in order."""
        return [partition for partition in self.partitions if partition.source == source]


def totals_of(partitions: list[Partition]) -> Totals:
    """Sums over `partitions`; a column that any of them lacks is absent."""

    def total(field: str) -> int | None:
        values = [getattr(partition, field) for partition in partitions]
        return None if any(value is None for value in values) else sum(values)

    return Totals(
        rows=sum(partition.rows for partition in partitions),
        bytes=sum(partition.bytes for partition in partitions),
        text_bytes=total("text_bytes"),
        tokens=total("tokens"),
    )


def pieces(manifest: Manifest) -> Iterator[bytes]:
    """Canonical JSON, indented for people; the same manifest gives the same bytes.

    Some partitions at a time: 100,000 as one text, and again with indents, would be the peak of a driver's memory.
    """
    plain = msgspec.to_builtins(msgspec.structs.replace(manifest, partitions=[])) | {"format": manifest.format}
    frame = msgspec.json.format(canonical_json(plain), indent=1) + b"\n"
    if not manifest.partitions:
        yield frame
        return
    before, after = frame.split(b'\n "partitions": []')  # no string holds a raw line feed, and nothing else one space
    yield before + b'\n "partitions": ['
    for start in range(0, len(manifest.partitions), PIECE):
        some = msgspec.json.encode(manifest.partitions[start : start + PIECE], order="sorted")
        lines = msgspec.json.format(some, indent=1)[1:-2].replace(b"\n", b"\n ")  # one level deeper, without brackets
        yield b"," + lines if start else lines
    yield b"\n ]" + after


def decode(data: bytes, url: str) -> Manifest:
    """Raises CorruptError where it does not parse or is of another format."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise CorruptError(f"{url} is not a manifest that this version reads: {error}") from error
    if manifest.format != FORMAT:
        raise CorruptError(f"{url} has format {manifest.format!r}; this version reads {FORMAT!r}")
    return manifest


def manifest_url(directory: str) -> str:
    """Where the manifest of a step's directory lies."""
    return urls.join(directory, FILE_NAME)


def read_manifest(directory: str) -> Manifest:
    """The manifest in a step's directory. Raises NotFoundError where the step is unfinished."""
    url = manifest_url(directory)
    return decode(urls.read_bytes(url), url)


def find_manifest(directory: str) -> Manifest | None:
    """The manifest, or None where the step is unfinished or was never begun."""
    try:
        return read_manifest(directory)
    except NotFoundError:
        return None


def write_manifest(manifest: Manifest, directory: str) -> None:
    """Create the manifest; the last write of a step. Raises DivergentOutputError if another one stands."""
    url = manifest_url(directory)
    with atomic.staging(url) as path:
        with path.open("wb") as file:
            file.writelines(pieces(manifest))
        atomic.commit_file(path, url)
