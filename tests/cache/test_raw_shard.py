"""Raw shards are written and read without TensorStore, and have the bytes that it would write."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.cache import zarr_arrays
from datakit.cache.layout import ArrayForm
from datakit.cache.raw_shard import RAW, RawWriter, encoded_metadata, open_raw
from datakit.cache.reader import open_cache
from datakit.errors import CorruptError
from tests.support.caches import random_cache


@given(tokens=st.integers(1, 5000), chunk=st.integers(1, 700), batch=st.integers(1, 6000))
@settings(max_examples=20, deadline=None)
def test_raw_shards_of_any_size_are_flat(
    tmp_path_factory: pytest.TempPathFactory, tokens: int, chunk: int, batch: int
) -> None:
    """TensorStore writes the flat file that the direct reader expects and that the direct writer writes."""
    folder, values = tmp_path_factory.mktemp("shard"), np.arange(tokens, dtype=np.uint16)
    metadata = ArrayForm("uint16", chunk, RAW).metadata(tokens)
    store = {"driver": "file", "path": f"{folder}/"}
    specification = {"driver": "zarr3", "kvstore": store, "metadata": metadata, "store_data_equal_to_fill_value": True}
    tensorstore.open(specification, create=True).result().write(values).result()
    file = io.BytesIO()
    writer = RawWriter(file, np.dtype(np.uint16))
    for start in range(0, tokens, batch):
        writer.add(values[start : start + batch])
    writer.finish(metadata)
    assert file.getvalue() == (folder / "c" / "0").read_bytes()
    assert (writer.bytes, writer.xxh3) == (len(file.getvalue()), xxhash.xxh3_128_hexdigest(file.getvalue()))
    assert encoded_metadata(metadata) == (folder / "zarr.json").read_bytes()
    shard = open_raw(str(folder / "c" / "0"), metadata)
    assert shard is not None
    assert (shard.view() == values).all()
    out = np.empty(tokens - tokens // 2, np.uint16)
    shard.read_into(tokens // 2, out)
    assert (out == values[tokens // 2 :]).all()


def test_reordered_raw_shard_is_left_to_tensorstore(tmp_path: Path) -> None:
    """If its chunks are stored in another order, it is still read correctly."""
    metadata = ArrayForm("uint16", 100, RAW).metadata(1000)
    values = np.arange(1000, dtype=np.uint16)
    store = {"driver": "file", "path": f"{tmp_path}/"}
    specification = {"driver": "zarr3", "kvstore": store, "metadata": metadata, "store_data_equal_to_fill_value": True}
    tensorstore.open(specification, create=True).result().write(values).result()
    data = tmp_path / "c" / "0"
    whole = data.read_bytes()
    swapped = whole[200:400] + whole[:200] + whole[400:]
    index = np.frombuffer(swapped[2000:-4], "<u8").copy()
    index[[0, 2]] = index[[2, 0]]
    data.write_bytes(swapped[:2000] + index.tobytes() + crc32c(index.tobytes()).to_bytes(4, "little"))
    assert open_raw(str(data), metadata) is None
    array = zarr_arrays.open_array(str(tmp_path), metadata, zarr_arrays.read_context(1 << 20, True))
    assert (array.read().result() == values).all()


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_raw_file_truncated_while_open_is_an_error(tmp_path: Path) -> None:
    directory, _ = random_cache(tmp_path, np.uint16, [50_000])
    cache = open_cache(str(directory))
    cache.read(0, 10)
    os.truncate(directory / "data/web/shard-00000/c/0", 1000)
    with pytest.raises(CorruptError, match=r"shard-00000/c/0 ends at byte 1000: it was truncated"):
        cache.read(0, 10_000)


def test_open_shard_says_nothing_when_the_interpreter_exits(tmp_path: Path) -> None:
    """Something that outlives the modules may keep it, such as a thread or another library."""
    directory, _ = random_cache(tmp_path, np.uint16, [50_000])
    script = """
import os, sys
from datakit.cache.reader import open_cache
os.kept = open_cache(sys.argv[1])
os.kept.read(0, 10)
"""
    done = subprocess.run([sys.executable, "-c", script, str(directory)], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_shard_that_is_dropped_is_closed(tmp_path: Path) -> None:
    directory, _ = random_cache(tmp_path, np.uint16, [50_000])
    cache = open_cache(str(directory))
    cache.read(0, 10)
    shard = str(directory / "data/web/shard-00000/c/0")
    links = Path("/proc/self/fd")
    assert shard in [os.path.realpath(link) for link in links.iterdir()]
    del cache
    gc.collect()
    assert shard not in [os.path.realpath(link) for link in links.iterdir()]
