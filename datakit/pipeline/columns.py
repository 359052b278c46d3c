"""Lists the columns of a step's output, by source.

Consolidate keeps the columns of each source, and its manifest's schema names only those that all sources have. For a
consolidate step, the columns are therefore read from the first Parquet file of each source. If that file is missing or
damaged, the manifest's schema is used.

Cost: one footer per source of a consolidate step; nothing for other steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from datakit.errors import CorruptError, NotFoundError, UnreadableError
from datakit.storage import urls
from datakit.storage.manifest import Column, Manifest
from datakit.storage.parquet import columns_of, open_shard

CONSOLIDATE = "consolidate"


def columns_by_source(directory: str, manifest: Manifest) -> dict[str, list[Column]]:
    """Return the columns of each source's partitions, in the order in which the files have them."""
    first = {part.source: part.path for part in reversed(manifest.partitions)}
    sources = list(dict.fromkeys(part.source for part in manifest.partitions))
    if manifest.stage != CONSOLIDATE:
        return dict.fromkeys(sources, manifest.schema)
    places = [urls.join(directory, first[source]) for source in sources]
    found = urls.fetch_ahead(_columns_in, places)
    return {source: columns or manifest.schema for source, columns in zip(sources, found, strict=True)}


def all_columns(directory: str, manifest: Manifest) -> list[Column]:
    """Return the columns of all sources: first those of the manifest's schema, then the others. A column that has
    different types in different sources is listed once for each type.
    """
    others = columns_by_source(directory, manifest).values()
    return _without_repetition([manifest.schema, *others])


def _without_repetition(lists: Sequence[Sequence[Column]]) -> list[Column]:
    return list(dict.fromkeys(column for columns in lists for column in columns))


def _columns_in(url: str) -> list[Column] | None:
    try:
        with open_shard(url) as shard:
            return columns_of(shard.schema_arrow)
    except (CorruptError, NotFoundError, UnreadableError):
        return None
