"""Tokens that stay where another program wrote them: what a manifest says of an imported shard's array.

A cache that is imported by reference has a manifest, a tokenizer and lists of documents of its own, but its tokens are
stretches of zarr arrays in the other program's directories, which are never written to. `details["external"]` in the
manifest holds, for each shard, the array's directory (relative to the manifest where both are on one store), its
zarr.json, and the size and checksum of each of its files, so that an altered original is found like an altered copy.
"""

from __future__ import annotations

from typing import Any

import msgspec

from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.manifest import Manifest

KEY = "foreign"  # the name in manifests


class ExternalFile(msgspec.Struct, frozen=True):
    """A file of the array: its path below the array's directory, its size and xxh3-128."""

    path: str
    bytes: int
    xxh3: str


class ExternalShard(msgspec.Struct, frozen=True):
    """A shard's array: `form` is its place in `ExternalShards.forms`."""

    directory: str
    form: int
    files: list[ExternalFile]


class ExternalShards(msgspec.Struct, frozen=True):
    """All imported shards, one a partition and in the same order; `forms` holds the distinct zarr.json."""

    layout: str
    forms: list[dict[str, Any]]
    shards: list[ExternalShard]


def read_external(directory: str, manifest: Manifest) -> ExternalShards | None:
    """What a manifest says of imported shards; None where the cache holds its tokens itself. Raises CorruptError."""
    if KEY not in manifest.details:
        return None
    try:
        external = msgspec.convert(manifest.details[KEY], ExternalShards)
    except msgspec.ValidationError as error:
        raise CorruptError(f"{directory}: its manifest does not describe what was imported: {error}") from error
    if len(external.shards) != len(manifest.partitions):
        raise CorruptError(
            f"{directory}: {len(external.shards)} imported shards, {len(manifest.partitions)} partitions in all"
        )
    return external


def array_directory(cache: str, shard: ExternalShard) -> str:
    """Where the array lies, as an absolute URL."""
    absolute = urls.SPLITTER in shard.directory or shard.directory.startswith("/")
    return shard.directory if absolute else urls.join(cache, shard.directory)
