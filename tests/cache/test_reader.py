"""Tests that a cache returns the tokens and documents that were written, and opens by its manifest alone."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.cache.contract import Contract, Golden
from datakit.cache.documents import cache_documents
from datakit.cache.layout import FORMAT, CacheDetails, ShardFiles, SourceSums, array_form
from datakit.cache.read_ahead import block_ranges
from datakit.cache.reader import open_cache
from datakit.errors import NotFoundError, RootError, TokenizerError
from datakit.storage.manifest import Partition
from tests.support.caches import (
    RANDOM_SHARDS,
    SMALL_TEXTS,
    random_cache,
    reference_tokens,
    write_cache_manifest,
)
from tests.support.partitions import identity
from tests.support.paths import REPOSITORY


def test_reads_equal_a_plain_concatenation(small: Path) -> None:
    cache, expected = open_cache(str(small)), reference_tokens(small)
    assert cache.tokens == len(expected)

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, cache.tokens), st.integers(0, cache.tokens))
    def check(one: int, other: int) -> None:
        start, stop = min(one, other), max(one, other)
        found = cache.read(start, stop)
        assert found.dtype == np.uint16
        assert found.shape == (stop - start,)
        assert (found == expected[start:stop]).all()

    check()
    for start, stop in [(-1, 1), (2, 1), (0, cache.tokens + 1)]:
        with pytest.raises(IndexError, match=f"has {cache.tokens} tokens"):
            cache.read(start, stop)


@pytest.mark.parametrize("kind", ["raw", "compressed"])
def test_any_range_equals_that_of_one_array(random_caches: dict[str, tuple[Path, np.ndarray]], kind: str) -> None:
    directory, expected = random_caches[kind]
    cache = open_cache(str(directory))

    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, len(expected)), st.integers(0, 100_000))
    def check(start: int, count: int) -> None:
        stop = min(start + count, len(expected))
        found = cache.read(start, stop)
        assert found.dtype == expected.dtype
        assert (found == expected[start:stop]).all()
        found += 1  # the array belongs to the caller
        assert (cache.read(start, stop) == expected[start:stop]).all()

    check()


@pytest.mark.parametrize("kind", ["raw", "compressed"])
def test_blocks_are_all_tokens_in_order(random_caches: dict[str, tuple[Path, np.ndarray]], kind: str) -> None:
    directory, expected = random_caches[kind]
    cache = open_cache(str(directory))
    assert (np.concatenate(list(cache.blocks())) == expected).all()
    ranges = block_ranges(len(expected), 10_007)[::-1]
    for in_flight in (1, 2, 4):
        for block, (start, stop) in zip(cache.blocks(ranges, in_flight), ranges, strict=True):
            assert (block == expected[start:stop]).all()
    futures = [cache.read_async(start, stop) for start, stop in ranges]
    assert all((f.result() == expected[a:b]).all() for f, (a, b) in zip(futures, ranges, strict=True))


def test_many_threads_may_read_one_cache(
    random_caches: dict[str, tuple[Path, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "datakit.cache.shard_arrays.OPEN_ARRAYS", 1
    )  # so that arrays are dropped while other threads use them
    for directory, expected in random_caches.values():
        cache = open_cache(str(directory))
        places = np.random.default_rng(0).integers(0, len(expected) - 40_000, 200).tolist()
        with ThreadPoolExecutor(8) as pool:
            for found, start in zip(pool.map(lambda p, c=cache: c.read(p, p + 40_000), places), places, strict=True):
                assert (found == expected[start : start + 40_000]).all()


def test_small_raw_cache_is_viewed_without_a_copy(
    tmp_path: Path, random_caches: dict[str, tuple[Path, np.ndarray]]
) -> None:
    directory, expected = random_cache(tmp_path, np.uint16, [50_000, 0])
    view = open_cache(str(directory)).view()
    assert isinstance(view, np.memmap)
    assert (view == expected).all()
    for directory, expected in random_caches.values():  # several shards, or compressed: a copy
        cache = open_cache(str(directory))
        assert (cache.view() == expected).all()
        assert not cache.view().flags.writeable
        assert (cache.shard_view(0) is None) == (expected.dtype == np.uint32)
        assert cache.shard_view(2) is None
    cache = open_cache(str(random_caches["raw"][0]))
    assert all(len(cache.shard_view(i)) == RANDOM_SHARDS[i] for i in (0, 1, 3, 4))  # pyright: ignore[reportArgumentType]


def test_documents_are_read_in_order_and_by_row(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_documents, "BLOCK_TOKENS", 100)
    cache = open_cache(str(small))
    tokenizer = tokenizers.Tokenizer.from_file(str(small / "tokenizer.json"))
    by_id = {identity(text): text for texts in SMALL_TEXTS.values() for text in texts}
    documents = list(cache.documents())
    assert len(documents) == cache.documents_count == len(by_id)
    for row, document in enumerate(documents):
        assert document.tokens.tolist() == [*tokenizer.encode(by_id[document.id]).ids, 0]
        again = cache.document(row)
        assert (again.id, again.tokens.tolist()) == (document.id, document.tokens.tolist())
    with pytest.raises(IndexError, match="document 211"):
        cache.document(cache.documents_count)


# --- opening


OPEN = """
import json, os, sys
from pathlib import Path

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyarrow", "numba", "tokenizers", "fastokens", "duckdb", "fsspec", "pandas"):
            raise ImportError(f"{name} is not on this machine")

sys.meta_path.insert(0, Refuse())
opened, folder = [], sys.argv[1]
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
from datakit.cache.reader import open_cache
cache = open_cache(folder)
at_open = [os.path.relpath(path, folder) for path in opened if path.startswith(folder)]
before = cache.requests
tokens = len(cache.read(0, cache.tokens)) if sys.argv[2] == "read" else 0
status = Path("/proc/self/status")
lines = status.read_text().splitlines() if status.exists() else []
peak = sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))  # KiB
print(json.dumps([at_open, before, cache.requests > 0, tokens, peak, cache.tokens, cache.shards[-1].token_start]))
"""


def open_elsewhere(directory: Path, *, read: bool) -> list[Any]:
    """Open a cache in a new process that has no library of the pipeline; what OPEN prints."""
    command = [sys.executable, "-c", OPEN, str(directory), "read" if read else "open"]
    done = subprocess.run(command, env={"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_opening_is_one_read_without_the_pipelines_libraries(small: Path) -> None:
    opened, before, requests, read, _, tokens, _ = open_elsewhere(small, read=True)
    assert (opened, before, requests) == (["manifest.json"], 0, True)
    assert read == tokens == open_cache(str(small)).tokens


def test_ten_thousand_shards_open_by_manifest_in_little_memory(tmp_path: Path) -> None:
    """Less than 100 MB at the peak, interpreter and libraries included."""
    marks = [f"{n:032x}" for n in range(10_000)]
    partitions = [
        Partition(f"data/web/shard-{n:05d}", "web", 5000, 1 << 22, mark, 1 << 23, 1 << 21, mark, mark)
        for n, mark in enumerate(marks)
    ]
    details = CacheDetails(
        format=FORMAT,
        contract=Contract("0" * 64, "none", 50_000, None, None, []),
        array=array_form(np.dtype(np.uint16)),
        shards=[ShardFiles(700, mark, 90_000, mark, mark) for mark in marks],
        sources={"web": SourceSums(10_000, 50_000_000, 10_000 << 21, 10_000 << 23)},
        lengths={"512": 50_000_000},
    )
    write_cache_manifest(tmp_path, partitions, details)
    opened, _, _, _, peak, tokens, last = open_elsewhere(tmp_path, read=False)
    assert opened == ["manifest.json"]
    assert (tokens, last) == (10_000 << 21, 9_999 << 21)
    assert peak * 1024 < 100e6


# --- refusals


def test_unfinished_cache_says_how_to_finish_it(copied: Path) -> None:
    (copied / "manifest.json").unlink()
    with pytest.raises(NotFoundError, match=r"no manifest\.json.*datakit run"):
        open_cache(str(copied))


def test_unsupported_protocols_are_refused() -> None:
    for url in ("http://example.org/cache", "hf://datasets/a/b"):
        with pytest.raises(RootError, match="from a file system, s3:// or gs://"):
            open_cache(url)


def test_other_tokenizer_is_refused_with_both_hashes(small: Path) -> None:
    cache = open_cache(str(small))
    cache.require_tokenizer(cache.contract.tokenizer_sha256)
    with pytest.raises(TokenizerError, match=f"{cache.contract.tokenizer_sha256}, but .* is {'0' * 64}"):
        cache.require_tokenizer("0" * 64)


def test_differing_encoding_is_refused_with_both_results(small: Path) -> None:
    cache = open_cache(str(small))
    tokenizer = tokenizers.Tokenizer.from_file(str(small / "tokenizer.json"))
    cache.require_encoding(lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
    first: Golden = cache.contract.golden[0]
    with pytest.raises(TokenizerError) as error:
        cache.require_encoding(lambda text: [1, 2])
    assert "[1, 2]" in str(error.value)
    assert str(first.ids) in str(error.value)
