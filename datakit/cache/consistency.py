"""Checks that a cache's manifest is consistent with itself; runs on every open and reads no other file.

`datakit/validate/token_cache.py` compares the files with the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from datakit.cache.layout import FORMAT, STAGE, CacheDetails
from datakit.errors import CorruptError, UsageError
from datakit.storage.manifest import Manifest

REMEDY = "remove the cache's directory and make it again (`datakit run`)"


def read_details(directory: str, manifest: Manifest) -> CacheDetails:
    """Return the cache's own part of the manifest, checked against the rest. Raises UsageError, CorruptError."""
    if manifest.stage != STAGE:
        raise UsageError(f"{directory} is the output of stage {manifest.stage!r}, not a token cache")
    form = manifest.details.get("format")
    if form is not None and form != FORMAT:
        raise CorruptError(
            f"{directory} has format {form!r}; this version reads {FORMAT!r}: make it again (`datakit run` its "
            f"recipe, or `datakit cache import`), or read it with the version that made it"
        )
    try:
        details = msgspec.convert(manifest.details, CacheDetails)
    except msgspec.ValidationError as error:
        raise CorruptError(f"{directory}: its manifest does not describe a token cache: {error}") from error
    for what, one, other in _sums(manifest, details):
        if one != other:
            raise CorruptError(
                f"{directory}: sums in its manifest disagree ({what}: {one} and {other}), so it was altered; {REMEDY}"
            )
    return details


def _sums(manifest: Manifest, details: CacheDetails) -> Iterator[tuple[str, object, object]]:
    """Pairs of values that must be equal, each with a name."""
    partitions, sources = manifest.partitions, details.sources.values()
    tokens = sum(partition.tokens or 0 for partition in partitions)
    rows = sum(partition.rows for partition in partitions)
    yield "tokens of the shards and in total", tokens, manifest.totals.tokens
    yield "documents of the shards and in total", rows, manifest.totals.rows
    yield "tokens of the shards and of the sources", tokens, sum(entry.tokens for entry in sources)
    yield "documents of the shards and of the sources", rows, sum(entry.documents for entry in sources)
    yield "documents of the shards and in the histogram of lengths", rows, sum(details.lengths.values())
    yield "shards and descriptions of their files", len(partitions), len(details.shards)
    yield "type of the ids and of the arrays", details.contract.dtype.name, details.array.dtype
