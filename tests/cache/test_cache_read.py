"""Blocks ahead, memory maps, documents by id, loss masks: every road through a cache leads to the same tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tensorstore
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.cache import layout, zarr_arrays
from datakit.cache.contract import Contract, Golden
from datakit.cache.layout import FORMAT, ArrayForm, CacheDetails, ShardFiles, SourceSums, array_form
from datakit.cache.raw_shard import RAW, open_raw
from datakit.cache.read_ahead import block_ranges, read_ahead
from datakit.cache.reader import Cache, open_cache
from datakit.errors import CorruptError, StorageError, TokenizerError
from datakit.storage import manifest as manifests
from datakit.storage.manifest import Partition
from datakit.validate.token_cache import require_intact
from tests.support.caches import RANDOM_SHARDS, make_cache, random_cache, upload, write_cache_manifest
from tests.support.partitions import identity, words
from tests.support.paths import REPOSITORY
from tests.support.s3 import s3_root

CHUNK = 1 << 14


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, np.ndarray]]:
    """Raw uint16 and compressed uint32, five shards each, one of them empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_TOKENS", CHUNK)
        return {
            name: random_cache(tmp_path_factory.mktemp(name), dtype, masks=True)
            for name, dtype in (("raw", np.uint16), ("compressed", np.uint32))
        }


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    return {"novels": words(1, 150), "laws": words(2, 60)}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, texts: dict[str, list[str]]) -> Path:
    return make_cache(tmp_path_factory.mktemp("real"), texts, bits=1)


# --- tokens


@pytest.mark.parametrize("kind", ["raw", "compressed"])
def test_any_range_is_the_same_as_of_one_array(made: dict[str, tuple[Path, np.ndarray]], kind: str) -> None:
    directory, expected = made[kind]
    cache = open_cache(str(directory))

    @settings(max_examples=100, deadline=None)
    @given(st.integers(0, len(expected)), st.integers(0, 100_000))
    def check(start: int, count: int) -> None:
        stop = min(start + count, len(expected))
        found = cache.read(start, stop)
        assert found.dtype == expected.dtype
        assert (found == expected[start:stop]).all()
        found += 1  # it is the caller's own
        assert (cache.read(start, stop) == expected[start:stop]).all()

    check()


@pytest.mark.parametrize("kind", ["raw", "compressed"])
def test_blocks_read_ahead_are_all_tokens_in_order(made: dict[str, tuple[Path, np.ndarray]], kind: str) -> None:
    directory, expected = made[kind]
    cache = open_cache(str(directory))
    assert (np.concatenate(list(cache.blocks())) == expected).all()
    ranges = block_ranges(len(expected), 10_007)[::-1]
    for in_flight in (1, 2, 4):
        for block, (start, stop) in zip(cache.blocks(ranges, in_flight), ranges, strict=True):
            assert (block == expected[start:stop]).all()
    futures = [cache.read_async(start, stop) for start, stop in ranges]
    assert all((f.result() == expected[a:b]).all() for f, (a, b) in zip(futures, ranges, strict=True))


def test_many_threads_may_read_one_cache(
    made: dict[str, tuple[Path, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datakit.cache.shard_arrays.OPEN_ARRAYS", 1)  # so that arrays are closed under others' feet
    for directory, expected in made.values():
        cache = open_cache(str(directory))
        places = np.random.default_rng(0).integers(0, len(expected) - 40_000, 200).tolist()
        with ThreadPoolExecutor(8) as pool:
            for found, start in zip(pool.map(lambda p, c=cache: c.read(p, p + 40_000), places), places, strict=True):
                assert (found == expected[start : start + 40_000]).all()


@given(count=st.integers(0, 30), in_flight=st.integers(1, 6))
def test_reading_ahead_never_holds_more_than_allowed(count: int, in_flight: int) -> None:
    begun, lock, used = [], threading.Lock(), 0

    def read(start: int, stop: int) -> np.ndarray:
        with lock:
            begun.append(start)
        return np.array([start])

    for number, block in enumerate(read_ahead(read, [(n, n + 1) for n in range(count)], in_flight)):
        assert block.tolist() == [number]
        used += 1
        assert len(begun) <= used + in_flight - 1 or in_flight == 1
    assert used == count


def test_an_error_ahead_is_raised_in_its_turn() -> None:
    def read(start: int, stop: int) -> np.ndarray:
        if start == 2:
            raise CorruptError("the third")
        return np.array([start])

    found = []
    with pytest.raises(CorruptError, match="the third"):
        for block in read_ahead(read, [(n, n + 1) for n in range(9)], 4):
            found.append(block.tolist())
    assert found == [[0], [1]]


def test_a_raw_block_is_one_request_and_a_compressed_one_at_most_six(tmp_path: Path) -> None:
    for name, dtype, most in (("raw", np.uint16, 1), ("compressed", np.uint32, 6)):
        directory, expected = random_cache(tmp_path / name, dtype, [3 << 20])
        cache = open_cache(str(directory))
        cache.read(0, 1)  # the shard's index
        for start in (0, 1_000_000, 2_097_151):
            before = cache.requests
            assert (cache.read(start, start + (1 << 20)) == expected[start : start + (1 << 20)]).all()
            assert cache.requests - before <= most


def test_a_small_raw_cache_is_viewed_without_a_copy(tmp_path: Path, made: dict[str, tuple[Path, np.ndarray]]) -> None:
    directory, expected = random_cache(tmp_path, np.uint16, [50_000, 0])
    view = open_cache(str(directory)).view()
    assert isinstance(view, np.memmap)
    assert (view == expected).all()
    for directory, expected in made.values():  # several shards, or compressed: a copy
        cache = open_cache(str(directory))
        assert (cache.view() == expected).all()
        assert not cache.view().flags.writeable
        assert (cache.shard_view(0) is None) == (expected.dtype == np.uint32)
        assert cache.shard_view(2) is None
    cache = open_cache(str(made["raw"][0]))
    assert all(len(cache.shard_view(i)) == RANDOM_SHARDS[i] for i in (0, 1, 3, 4))  # pyright: ignore[reportArgumentType]


@given(tokens=st.integers(1, 5000), chunk=st.integers(1, 700))
@settings(max_examples=40, deadline=None)
def test_raw_shards_of_any_size_are_flat(tmp_path_factory: pytest.TempPathFactory, tokens: int, chunk: int) -> None:
    """What TensorStore writes is the flat file that the direct reader takes it for."""
    folder, values = tmp_path_factory.mktemp("shard"), np.arange(tokens, dtype=np.uint16)
    metadata = ArrayForm("uint16", chunk, RAW).metadata(tokens)
    store = {"driver": "file", "path": f"{folder}/"}
    specification = {"driver": "zarr3", "kvstore": store, "metadata": metadata, "store_data_equal_to_fill_value": True}
    tensorstore.open(specification, create=True).result().write(values).result()
    shard = open_raw(str(folder / "c" / "0"), metadata)
    assert shard is not None
    assert (shard.view() == values).all()
    out = np.empty(tokens - tokens // 2, np.uint16)
    shard.read_into(tokens // 2, out)
    assert (out == values[tokens // 2 :]).all()


def test_a_raw_shard_in_another_order_is_left_to_tensorstore(tmp_path: Path) -> None:
    """Written piece by piece from the end, its chunks do not lie in order; it is read right all the same."""
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


def test_a_raw_file_that_is_cut_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    directory, _ = random_cache(tmp_path, np.uint16, [50_000])
    cache = open_cache(str(directory))
    cache.read(0, 10)
    os.truncate(directory / "web/shard-00000/c/0", 1000)
    with pytest.raises(CorruptError, match=r"shard-00000/c/0 ends at byte 1000: it was cut"):
        cache.read(0, 10_000)


def test_an_altered_compressed_shard_is_an_error(tmp_path: Path) -> None:
    directory, _ = random_cache(tmp_path, np.uint32, [50_000])
    data = directory / "web/shard-00000/c/0"
    whole = data.read_bytes()
    data.write_bytes(whole[:-10] + bytes([whole[-10] ^ 1]) + whole[-9:])
    with pytest.raises(CorruptError, match=r"shard-00000 is missing or damaged; `datakit validate` tells"):
        open_cache(str(directory)).read(0, 10)


# --- loss masks


def test_loss_masks_are_read_like_tokens(made: dict[str, tuple[Path, np.ndarray]]) -> None:
    for directory, tokens in made.values():
        cache = open_cache(str(directory))
        assert cache.has_loss_mask
        expected = np.ones(len(tokens), bool)
        for number, shard in enumerate(cache.shards):
            if number % 2:
                place = slice(shard.token_start, shard.token_start + shard.tokens)
                expected[place] = tokens[place] % 3 == 0
        for start, stop in [(0, len(tokens)), (69_990, 70_010), (5, 5), (100_000, 230_000)]:
            found = cache.read_loss_mask(start, stop)
            assert found.dtype == bool
            assert (found == expected[start:stop]).all()
        with pytest.raises(IndexError):
            cache.read_loss_mask(0, len(tokens) + 1)


def test_damage_to_a_loss_mask_is_found(tmp_path: Path) -> None:
    directory, _ = random_cache(tmp_path, np.uint16, [100, 5000], masks=True)
    require_intact(open_cache(str(directory)))
    mask = directory / "web/shard-00001.loss_mask/c/0"
    mask.write_bytes(mask.read_bytes()[:-1])
    with pytest.raises(CorruptError, match=r"shard-00001.loss_mask/c/0 has \d+ bytes"):
        require_intact(open_cache(str(directory)))
    with pytest.raises(CorruptError, match=r"shard-00001.loss_mask/c/0 has"):
        open_cache(str(directory)).read_loss_mask(0, 200)


# --- documents


def test_documents_are_found_by_id_and_by_position(real: Path, texts: dict[str, list[str]]) -> None:
    cache = open_cache(str(real))
    tokenizer = tokenizers.Tokenizer.from_file(str(real / "tokenizer.json"))
    for source, group in texts.items():
        for text in group:
            row = cache.find(identity(text))
            assert row is not None
            document = cache.document(row)
            assert document.tokens.tolist() == [*tokenizer.encode(text).ids, 0]
            assert cache.source_of(row) == source
            start = cache.position_of(row)
            assert cache.row_at(start) == cache.row_at(start + len(document.tokens) - 1) == row
    for absent in ("0" * 32, "f" * 32, identity("something else"), "not an id"):
        assert cache.find(absent) is None


def test_finding_an_id_reads_one_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a shard whose list has many row groups."""
    monkeypatch.setattr("datakit.storage.parquet.ROW_GROUP_ROWS", 2)
    directory, _ = random_cache(tmp_path, np.uint16)
    cache = open_cache(str(directory))
    for row, document in enumerate(cache.documents()):
        fresh = open_cache(str(directory))
        assert fresh.find(document.id) == row
        assert len(fresh._documents._groups._values) == 1
        assert cache.document(row).id == document.id


def test_empty_documents_are_found_and_own_no_position(tmp_path: Path) -> None:
    directory, tokens = random_cache(tmp_path, np.uint16, [5, 0, 3])
    cache = open_cache(str(directory))
    owners = [cache.row_at(position) for position in range(len(tokens))]
    every = list(cache.documents())
    assert owners == [row for row, document in enumerate(every) for _ in document.tokens]
    for row, document in enumerate(every):
        assert cache.find(document.id) == row
        assert cache.document(row).tokens.tolist() == document.tokens.tolist()
    with pytest.raises(IndexError, match="token 8 of"):
        cache.row_at(8)


# --- refusals


def test_a_tokenizer_that_encodes_otherwise_is_refused_with_both_answers(real: Path) -> None:
    cache = open_cache(str(real))
    tokenizer = tokenizers.Tokenizer.from_file(str(real / "tokenizer.json"))
    cache.require_encoding(lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
    first: Golden = cache.contract.golden[0]
    with pytest.raises(TokenizerError) as error:
        cache.require_encoding(lambda text: [1, 2])
    assert "[1, 2]" in str(error.value)
    assert str(first.ids) in str(error.value)


def test_sums_that_disagree_are_named(real: Path) -> None:
    manifest = manifests.read_manifest(str(real))
    details = {**manifest.details, "lengths": {"2": 1}}
    with pytest.raises(CorruptError, match=r"documents of the shards and in the histogram of lengths: 210 and 1"):
        Cache("somewhere", msgspec.structs.replace(manifest, details=details))


# --- size and distance


OPEN = """
import json, sys, time
from pathlib import Path
opened = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
from datakit.cache.reader import open_cache
began = time.process_time()
cache = open_cache(sys.argv[1])
seconds = time.process_time() - began
(peak,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
reads = [path for path in opened if path.startswith(sys.argv[1])]
print(json.dumps([seconds, int(peak.split()[1]) / 1024, len(reads), cache.tokens]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to read the memory from")
def test_ten_thousand_shards_cost_one_read_and_little_memory(tmp_path: Path) -> None:
    """In a process of its own: interpreter, libraries and all stay below 100 MB, half a second is plenty."""
    partitions = [
        Partition(f"web/shard-{n:05d}", "web", 5000, 1 << 22, f"{n:032x}", 1 << 23, 1 << 21, f"{n:032x}", f"{n:032x}")
        for n in range(10_000)
    ]
    details = CacheDetails(
        format=FORMAT,
        contract=Contract("0" * 64, "none", 50_000, None, None, []),
        array=array_form(np.dtype(np.uint16)),
        shards=[ShardFiles(700, f"{n:032x}", 90_000, f"{n:032x}", f"{n:032x}") for n in range(10_000)],
        sources={"web": SourceSums(10_000, 50_000_000, 10_000 << 21, 0)},
        lengths={"512": 50_000_000},
    )
    write_cache_manifest(tmp_path, partitions, details)
    command = [sys.executable, "-c", OPEN, str(tmp_path)]
    done = subprocess.run(command, env={"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seconds, megabytes, reads, tokens = json.loads(done.stdout)
    print(f"10,000 shards opened in {seconds:.3f} s")
    assert megabytes * 1.048576 < 100
    assert (reads, tokens) == (1, 10_000 << 21)


def test_a_distant_store_keeps_a_million_tokens_a_second(tmp_path: Path) -> None:
    """50 ms before each answer: 4 blocks in flight, at most 6 requests a block."""
    directory, expected = random_cache(tmp_path, np.uint16, [8 << 20])
    with s3_root(latency=0.05) as root:
        upload(directory, root)
        cache = open_cache(root)
        ranges = block_ranges(len(expected))
        began, before = time.monotonic(), cache.requests
        for block, (start, stop) in zip(cache.blocks(ranges), ranges, strict=True):
            assert (block == expected[start:stop]).all()
        print(f"{len(expected) / (time.monotonic() - began) / 1e6:.1f} M tokens/s")
        assert cache.requests - before <= 6 * len(ranges)
        found = cache.find(f"{0:016x}{7:016x}")
        assert found == 7
        assert cache.document(7).id == f"{0:016x}{7:016x}"


def test_a_store_that_refuses_is_no_damage() -> None:
    class Refused:
        def result(self) -> None:
            raise ValueError("PERMISSION_DENIED: not yours")

    with pytest.raises(StorageError, match="cannot be read: PERMISSION_DENIED") as error:
        zarr_arrays.finish(Refused(), "s3://bucket/shard")
    assert not isinstance(error.value, CorruptError)
