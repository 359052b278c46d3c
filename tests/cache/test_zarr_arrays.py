"""Tests of the TensorStore layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorstore

from datakit.cache import zarr_arrays
from datakit.cache.reader import open_cache
from datakit.errors import CorruptError, StorageError


def test_any_zarr_reader_opens_a_shard(small: Path) -> None:
    """The metadata on disk equal those derived from the manifest, and other zarr readers understand them."""
    cache = open_cache(str(small))
    for shard in cache.shards:
        specification = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{small / shard.path}/"}}
        array = tensorstore.open(specification, open=True).result()
        stop = shard.token_start + shard.tokens
        assert (array.read().result() == cache.read(shard.token_start, stop)).all()
        assumed = tensorstore.open({**specification, "metadata": cache.details.array.metadata(shard.tokens)}, open=True)
        assert assumed.result().chunk_layout == array.chunk_layout


def test_denied_access_is_not_reported_as_damage() -> None:
    class Refused:
        def result(self) -> None:
            raise ValueError("PERMISSION_DENIED: not yours")

    with pytest.raises(StorageError, match="cannot be read: PERMISSION_DENIED") as error:
        zarr_arrays.finish(Refused(), "s3://bucket/shard")
    assert not isinstance(error.value, CorruptError)
