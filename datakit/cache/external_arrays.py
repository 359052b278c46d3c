"""Describes, in the manifest of an imported cache, tokens that are left where another program wrote them.

A cache imported by reference has its own manifest, tokenizer and lists of documents, but its tokens are ranges of zarr
arrays in the other program's directories, which datakit never writes to. `details["foreign"]` in the manifest holds,
for each shard, the array's directory (relative to the manifest if both are on one store), its zarr.json, and the size
and checksum of each of the array's files, so `datakit validate` also detects altered originals.
"""

from __future__ import annotations

from typing import Any

import msgspec

from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.manifest import Manifest

KEY = "foreign"  # the key in `details`


class ExternalFile(msgspec.Struct, frozen=True):
    """A file of an array: its path below the array's directory, its size and its xxh3-128."""

    path: str
    bytes: int
    xxh3: str


class ExternalShard(msgspec.Struct, frozen=True):
    """A shard's array; `form` is an index into `ExternalShards.forms`."""

    directory: str
    form: int
    files: list[ExternalFile]


class ExternalShards(msgspec.Struct, frozen=True):
    """All imported shards, one per partition and in the same order; `forms` holds the distinct zarr.json contents."""

    layout: str
    forms: list[dict[str, Any]]
    shards: list[ExternalShard]


def read_external(directory: str, manifest: Manifest) -> ExternalShards | None:
    """Return the manifest's description of external arrays; None if the cache has its own. Raises CorruptError."""
    if KEY not in manifest.details:
        return None
    try:
        external = msgspec.convert(manifest.details[KEY], ExternalShards)
    except msgspec.ValidationError as error:
        raise CorruptError(f"{directory}: its manifest does not describe the imported arrays: {error}") from error
    if len(external.shards) != len(manifest.partitions):
        raise CorruptError(
            f"{directory}: {len(external.shards)} imported shards for {len(manifest.partitions)} partitions"
        )
    return external


def array_directory(cache: str, shard: ExternalShard) -> str:
    absolute = urls.SPLITTER in shard.directory or shard.directory.startswith("/")
    return shard.directory if absolute else urls.join(cache, shard.directory)
