"""Defines and checks the manifest's section `foreign`, which describes the arrays of a cache whose tokens stay in
another program's directory. Such a cache is imported by reference: it has its own manifest, tokenizer and lists of
documents, but its tokens are in the other program's zarr arrays, which datakit never changes. For each shard, the
section holds the directory of the array (relative to the cache's directory if both are in one store), the array's
zarr.json, and the size and checksum of each file of the array, so `datakit validate` detects changes to the files.
"""

from __future__ import annotations

from typing import Any

import msgspec

from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.manifest import Manifest

KEY = "foreign"  # the section's key in the manifest's `details`


class ExternalFile(msgspec.Struct, frozen=True):
    """A file of an array: its path relative to the array's directory, its size and its xxh3-128 checksum."""

    path: str
    bytes: int
    xxh3: str


class ExternalShard(msgspec.Struct, frozen=True):
    """The array of one shard. `form` is an index into `ExternalShards.forms`."""

    directory: str
    form: int
    files: list[ExternalFile]


class ExternalShards(msgspec.Struct, frozen=True):
    """The arrays of all imported shards, in the order of the partitions. `forms` holds each distinct zarr.json."""

    layout: str
    forms: list[dict[str, Any]]
    shards: list[ExternalShard]


def read_external(directory: str, manifest: Manifest) -> ExternalShards | None:
    """Return the manifest's description of external arrays; None if there is none. Raises CorruptError."""
    if KEY not in manifest.details:
        return None
    try:
        external = msgspec.convert(manifest.details[KEY], ExternalShards)
    except msgspec.ValidationError as error:
        raise CorruptError(
            f"{directory}: the manifest's description of the imported arrays is invalid: {error}"
        ) from error
    if len(external.shards) != len(manifest.partitions):
        raise CorruptError(
            f"{directory}: its manifest lists {len(manifest.partitions)} partitions, but describes "
            f"{len(external.shards)} imported arrays"
        )
    for file in (file for shard in external.shards for file in shard.files):
        if not urls.is_below(file.path):
            raise CorruptError(
                f"{directory}: its manifest names {file.path!r} as a file of an imported array, but this path is not "
                f"below the array's directory; do not use the cache"
            )
    return external


def array_directory(cache: str, shard: ExternalShard) -> str:
    absolute = urls.SPLITTER in shard.directory or shard.directory.startswith("/")
    return shard.directory if absolute else urls.join(cache, shard.directory)
