"""Reads token caches in the Levanter layout for import: jagged arrays in zarr 3, and a ledger of the cache's shards.
`docs/cache.md` describes the layout. The ledger holds the flag `is_finished`, the number of rows in total and in each
shard, and the layout: consolidated (one pair of arrays for all documents) or sharded (one pair for each shard).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from datakit.cache import zarr_arrays
from datakit.cache.layout import METADATA_FILE
from datakit.errors import CorruptError, NotFoundError, UsageError
from datakit.interop.import_cache import ExternalTokens
from datakit.storage import urls
from datakit.storage.json_data import decode

LEDGER = "shard_ledger.json"
FIELD = "input_ids"
SHARDED = "sharded"
CACHE_BYTES = 16 << 20


class Ledger(msgspec.Struct, frozen=True):
    """The part of `shard_ledger.json` that is needed here. Older ledgers do not state the layout."""

    total_num_rows: int
    is_finished: bool
    shard_rows: dict[str, int] = {}
    finished_shards: list[str] = []
    layout: str | None = None


def is_levanter(cache: str) -> bool:
    return urls.exists(urls.join(cache, LEDGER))


def read_levanter(cache: str, field: str = FIELD) -> Iterator[ExternalTokens]:
    """Yield one ExternalTokens for the cache or, if the cache is sharded, for each shard. A cache or shard without rows
    yields none. Raises UsageError, CorruptError and NotFoundError.
    """
    place = urls.join(cache, LEDGER)
    try:
        ledger = decode(urls.read_bytes(place), Ledger)
    except msgspec.DecodeError as error:
        raise CorruptError(f"{place} is not the ledger of a cache: {error}") from error
    if min(ledger.total_num_rows, *ledger.shard_rows.values()) < 0:
        raise CorruptError(f"{place} states a negative number of rows")
    if not ledger.is_finished:
        raise UsageError(f"{cache} is not finished, according to its ledger; complete it with the program that made it")
    named = dict.fromkeys(ledger.finished_shards or ledger.shard_rows)
    sharded = ledger.layout == SHARDED or (
        ledger.layout is None and not urls.exists(urls.join(cache, field, "data", METADATA_FILE))
    )
    rows = {name: ledger.shard_rows.get(name) for name in named} if sharded else {"": ledger.total_num_rows}
    expected = sum(count or 0 for count in rows.values())
    if expected != ledger.total_num_rows:
        total = ledger.total_num_rows
        raise CorruptError(f"{place}: the shards have {expected} rows in total, but total_num_rows is {total}")
    for name, count in rows.items():
        if count is None:
            raise CorruptError(f"{place} has no row count for shard {name!r}")
        if name and not urls.is_below(name):
            raise CorruptError(f"{place} names the shard {name!r}, which is outside the cache; do not use the cache")
        if count:
            yield _jagged_array(urls.join(cache, name, field) if name else urls.join(cache, field), count)


def _jagged_array(place: str, rows: int) -> ExternalTokens:
    context = zarr_arrays.read_context(CACHE_BYTES, urls.is_local(place))
    offsets, _ = _open_array(place, "offsets", context)
    found = zarr_arrays.finish(offsets[: rows + 1].read(), urls.join(place, "offsets"))
    if int(found[0]) != rows:
        raise CorruptError(
            f"{place}: its offsets list {int(found[0])} rows, but the ledger lists {rows}; one of the two was altered"
        )
    lengths = np.diff(found[1:], prepend=0).astype(np.int64)
    if len(lengths) and lengths.min() < 0:
        raise CorruptError(f"{place}: its offsets decrease at row {int(np.argmin(lengths))}")
    directory = urls.join(place, "data")
    data, metadata = _open_array(place, "data", context)

    def read(start: int, stop: int) -> np.ndarray:
        return zarr_arrays.finish(data[start:stop].read(), directory)

    return ExternalTokens(place, lengths, read, (directory, metadata))


def _open_array(place: str, name: str, context: Any) -> tuple[Any, dict[str, Any]]:
    directory = urls.join(place, name)
    try:
        metadata = decode(urls.read_bytes(urls.join(directory, METADATA_FILE)), dict[str, Any])
        axes = len(metadata["shape"])
    except NotFoundError as error:
        raise NotFoundError(f"{directory} holds no zarr 3 array; is {urls.name(place)!r} the right field?") from error
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise CorruptError(
            f"{urls.join(directory, METADATA_FILE)} does not describe a zarr 3 array: {error}"
        ) from error
    if axes != 1:
        raise UsageError(f"{directory} has {axes} axes; only arrays with one axis (lists of tokens) can be imported")
    return zarr_arrays.open_array(directory, metadata, context, sparse=True), metadata
