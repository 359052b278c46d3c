"""The loader on a real token cache: the tokens, documents and sources that the cache says it has."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from datakit.cache.reader import open_cache
from datakit.errors import LoaderError
from datakit.loader import Component, Loader, Mixture, Packing, Shuffle, TokenSource, open_source
from tests.support.caches import make_cache, upload
from tests.support.faults.faulty_proxy import faulty_proxy
from tests.support.loader_sources import real_tokens
from tests.support.partitions import words
from tests.support.s3 import s3_root


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two sources in four shards each; every document ends with the end-of-text token."""
    texts = {
        name: [words(seed * 1000 + i, 1, 5 + i % 60)[0] for i in range(300)]
        for seed, name in enumerate(("code", "web"))
    }
    return str(make_cache(tmp_path_factory.mktemp("loader"), texts, bits=2))


def test_a_source_is_its_part_of_the_cache(cache: str) -> None:
    opened = open_cache(cache)
    whole = open_source(cache)
    parts = [open_source(cache, name) for name in ("code", "web")]
    assert isinstance(whole, TokenSource)
    assert len(opened.shards) == 8
    assert whole.tokens == opened.tokens == sum(part.tokens for part in parts)
    assert np.array_equal(whole.read(0, whole.tokens), np.concatenate([part.read(0, part.tokens) for part in parts]))
    assert len({whole.identity, *(part.identity for part in parts)}) == 3
    assert open_source(cache, "web").identity == parts[1].identity


def test_borders_are_those_of_the_documents(cache: str) -> None:
    source, opened = open_source(cache, "web"), open_cache(cache)
    lengths = [len(document.tokens) for document in opened.documents()]
    borders = np.concatenate([[0], np.cumsum(lengths)])
    skipped = opened.tokens - source.tokens
    borders = borders[borders >= skipped] - skipped
    assert np.array_equal(source.document_borders(0, source.tokens), borders)
    for start, stop in ((0, 1), (100, 101), (5000, 9000), (source.tokens - 1, source.tokens)):
        found = source.document_borders(start, stop)
        inside = borders[(borders > start) & (borders < stop)]
        assert found[0] <= start < found[1]
        assert found[-2] < stop <= found[-1]
        assert np.array_equal(found[1:-1], inside)


def test_the_borders_of_a_shard_cost_one_request(cache: str) -> None:
    with s3_root() as root, faulty_proxy(share=0) as proxy:
        upload(Path(cache), root)
        source = open_source(root, "web")
        before = proxy.requests.copy()
        borders = source.document_borders(0, source.tokens)
        assert len(source.document_borders(0, 1)) == 2
        assert proxy.requests - before == {"GET": 4}
    local = open_source(cache, "web")
    assert np.array_equal(borders, local.document_borders(0, local.tokens))


@pytest.mark.parametrize("packing", [None, Packing()])
def test_segments_end_where_documents_do(cache: str, packing: Packing | None) -> None:
    end = open_cache(cache).contract.eos
    assert end is not None
    components = {
        name: Component(open_source(cache, name), packing, Shuffle(block_tokens=4096, window_blocks=2))
        for name in ("code", "web")
    }
    mixture = Mixture(components, {"code": 1, "web": 2}, sequence_length=512, batch_size=8, pad_id=65535)
    with Loader(mixture) as loader:
        for batch in loader.iterate(0, 20):
            last = (batch.segments[:, :-1] != batch.segments[:, 1:]) & (batch.segments[:, :-1] > 0)
            assert (batch.tokens[:, :-1][last] == end.id).all()
            assert np.count_nonzero(batch.tokens[:, :-1] == end.id) == np.count_nonzero(last)


def test_an_epoch_is_the_cache(cache: str) -> None:
    source = open_source(cache)
    mixture = Mixture(
        {"all": Component(source, shuffle=Shuffle(block_tokens=4096))}, {"all": 1}, sequence_length=128, batch_size=16,
        stop="first_exhausted", final_batch="pad", memory_bytes=1 << 17,
    )  # fmt: skip
    with Loader(mixture) as loader, pickle.loads(pickle.dumps(loader)) as copy:
        seen = np.concatenate([real_tokens(batch) for batch in loader])
        assert np.array_equal(copy[5].tokens, loader[5].tokens)
    assert np.array_equal(np.sort(seen), np.sort(source.read(0, source.tokens)))


def test_a_source_that_is_not_in_the_cache(cache: str) -> None:
    with pytest.raises(LoaderError, match="did you mean 'web'"):
        open_source(cache, "wep")


def test_reading_loads_no_heavy_library(cache: str) -> None:
    """Documents and all: a process that reads batches has numpy, TensorStore and little more in memory."""
    script = """
import sys
from datakit.loader import Component, Loader, Mixture, open_source
source = open_source(sys.argv[1])
with Loader(Mixture({"x": Component(source)}, {"x": 1}, sequence_length=64)) as loader:
    assert loader[0].segments.any()
heavy = {"pyarrow", "numba", "duckdb", "jax", "torch", "ray", "tokenizers", "fsspec"} & set(sys.modules)
print(sorted(heavy))
"""
    done = subprocess.run([sys.executable, "-c", script, cache], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
