"""Tests of the TensorStore layer."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorstore

from datakit.cache import zarr_arrays
from datakit.cache.reader import Cache, open_cache
from datakit.errors import CorruptError, StorageError
from tests.support.caches import random_cache


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


def test_counts_are_those_of_what_tensorstore_read(random_caches: dict[str, tuple[Path, np.ndarray]]) -> None:
    """The first shard has five chunks; read again, they come from the pool."""

    def counted(cache: Cache) -> dict[str, int]:
        before = zarr_arrays.tensorstore_metrics()
        cache.read(0, 70_000)
        return {name: count - before.get(name, 0) for name, count in zarr_arrays.tensorstore_metrics().items()}

    directory = random_caches["compressed"][0]
    cache, size = open_cache(str(directory)), (directory / "data/web/shard-00000/c/0").stat().st_size
    once, again = counted(cache), counted(cache)
    assert 0.9 * size < once["tensorstore/kvstore/file/bytes_read"] <= size
    assert once["tensorstore/kvstore/file/read"] > 0
    assert once["tensorstore/cache/chunk_cache/reads"] == 5
    assert once["tensorstore/cache/miss_count"] >= 5
    assert again["tensorstore/cache/hit_count"] > 0
    for name in ("cache/miss_count", "cache/evict_count", "kvstore/file/read", "kvstore/file/bytes_read"):
        assert again[f"tensorstore/{name}"] == 0
    assert counted(open_cache(str(directory), cache_bytes=1))["tensorstore/cache/evict_count"] > 0


UNUSED = """
import sys
import numpy as np
from datakit.cache.zarr_arrays import tensorstore_metrics
from datakit.loader import ArraySource, Component, Loader, Mixture
source = ArraySource(np.arange(1000, dtype=np.uint16), np.full(10, 100))
with Loader(Mixture({"a": Component(source)}, {"a": 1.0}, sequence_length=10, batch_size=2)) as loader:
    loader[0]
    assert not [name for name in loader.snapshot(1) if name.startswith("tensorstore/")]
assert tensorstore_metrics() == {}
assert "tensorstore" not in sys.modules
"""


def test_counts_are_empty_and_nothing_is_imported_for_them_if_tensorstore_is_unused() -> None:
    subprocess.run([sys.executable, "-c", UNUSED], check=True, timeout=120)


FORKED = """
import os, sys
from datakit.cache.reader import open_cache
from datakit.errors import UsageError
from datakit.loader import Component, Loader, Mixture, open_source

def loaded(place):
    with Loader(Mixture({"x": Component(open_source(place))}, {"x": 1}, sequence_length=64)) as loader:
        return loader[0].tokens

place, *names = sys.argv[1:]
parent = open_cache(place)
entries = {
    "parent": lambda: parent.read(0, 99),
    "read": lambda: open_cache(place).read(0, 99),
    "read_async": lambda: parent.read_async(0, 99).result(60),
    "blocks": lambda: list(open_cache(place).blocks()),
    "view": lambda: open_cache(place).view(),
    "row": lambda: open_cache(place).document(3).tokens,
    "id": lambda: open_cache(place).document(identity).tokens,
    "documents": lambda: [document.tokens for document in open_cache(place)],
    "arrow": lambda: open_cache(place).to_arrow(0, 9).read_all(),
    "loader": lambda: loaded(place),
    "mask": lambda: open_cache(place).read_loss_mask(0, parent.tokens),
}
if "id" in names:
    identity = parent.document(3).id
    [future.result() for future in [parent.read_async(n, n + 1) for n in range(9)]]
for name in names:
    child = os.fork()
    if not child:
        try:
            entries[name]()
        except UsageError as error:
            print(name, "is refused:", error, flush=True)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, (name, code)
"""
ENTRIES = ["parent", "read", "read_async", "blocks", "view", "row", "id", "documents", "arrow", "loader"]


def forked(place: Path, *entries: str) -> list[str]:
    """The refusals of children, each of which reads a cache in one way after a fork."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(place), *entries]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_forked_child_is_told_how_to_read_compressed_arrays(
    random_caches: dict[str, tuple[Path, np.ndarray]],
) -> None:
    """Reading would abort the process, also from a cache that the child opened itself."""
    found = forked(random_caches["compressed"][0], *ENTRIES, "mask")
    assert [line.partition(" is refused:")[0] for line in found] == [*ENTRIES, "mask"]
    assert all("start processes with the method 'spawn' or 'forkserver'" in line for line in found)


def test_raw_caches_can_be_read_after_a_fork(tmp_path: Path) -> None:
    assert forked(random_cache(tmp_path, np.uint16, [50_000, 20_000])[0], *ENTRIES) == []


def test_fork_before_the_first_read_is_harmless(random_caches: dict[str, tuple[Path, np.ndarray]]) -> None:
    assert forked(random_caches["compressed"][0], "parent", "read", "loader", "mask") == []


def first_tokens(place: str) -> np.ndarray:
    return open_cache(place).read(0, 99)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_advised_ways_to_start_a_process_work(random_caches: dict[str, tuple[Path, np.ndarray]], method: str) -> None:
    directory, tokens = random_caches["compressed"]
    assert np.array_equal(first_tokens(str(directory)), tokens[:99])
    with multiprocessing.get_context(method).Pool(1) as workers:
        assert np.array_equal(workers.apply(first_tokens, (str(directory),)), tokens[:99])
