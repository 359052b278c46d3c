"""A token cache gives back what was written, costs one read to open, and refuses what is not whole."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorstore
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.cache import layout, reader
from datakit.cache.layout import ArrayForm, array_form, length_histogram
from datakit.cache.reader import Cache, open_cache
from datakit.errors import CorruptError, NotFoundError, RootError, TokenizerError, UsageError
from datakit.storage import manifest as manifests
from datakit.storage import urls
from datakit.storage.atomic import commit_bytes, hash_file
from datakit.storage.manifest import Manifest, read_manifest, totals_of
from datakit.validate.token_cache import require_intact
from tests.support.caches import clean, make_cache, run, tokenize_step, trained
from tests.support.partitions import contents, identity, words
from tests.support.paths import FIXTURES, REPOSITORY
from tests.support.s3 import s3_root

TEXTS = {"novels": words(1, 150), "empty": [], "laws": words(2, 60), "one": ["a"]}


@pytest.fixture(scope="module")
def small() -> Iterator[Path]:
    """Three sources, shards of up to 30 chunks of at most 64 tokens."""
    with tempfile.TemporaryDirectory() as folder:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layout, "CHUNK_TOKENS", 64)
            directory = make_cache(Path(folder), TEXTS, bits=1)
        yield directory


@pytest.fixture
def copied(small: Path, tmp_path: Path) -> Path:
    """The small cache, to be altered."""
    return Path(shutil.copytree(small, tmp_path / "copy"))


def plain_tokens(directory: Path) -> np.ndarray:
    """All tokens in order, by another road: the reference library over the consolidated Parquet files."""
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    lines = []
    for partition in _clean(directory):
        for text in pq.read_table(partition)["text"].to_pylist():
            lines.append([*tokenizer.encode(text).ids, 0])
    return np.array([token for line in lines for token in line], np.uint16)


def _clean(directory: Path) -> Iterator[Path]:
    for partition in read_manifest(str(directory)).partitions:
        number = int(partition.path[-5:])
        yield directory.parent / "clean" / partition.source / f"part-{number:05d}-of-00002.parquet"


# --- reading


def test_reads_equal_a_plain_concatenation(small: Path) -> None:
    cache, expected = open_cache(str(small)), plain_tokens(small)
    assert cache.tokens == len(expected)

    @settings(max_examples=200, deadline=None)
    @given(st.integers(0, cache.tokens), st.integers(0, cache.tokens))
    def check(one: int, other: int) -> None:
        start, stop = min(one, other), max(one, other)
        found = cache.read(start, stop)
        assert found.dtype == np.uint16
        assert found.shape == (stop - start,)
        assert (found == expected[start:stop]).all()

    check()
    for start, stop in [(-1, 1), (2, 1), (0, cache.tokens + 1)]:
        with pytest.raises(IndexError, match=f"which has {cache.tokens}"):
            cache.read(start, stop)


def test_documents_come_back_by_order_and_by_row(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "BLOCK_TOKENS", 100)
    cache = open_cache(str(small))
    tokenizer = tokenizers.Tokenizer.from_file(str(small / "tokenizer.json"))
    by_id = {identity(text): text for texts in TEXTS.values() for text in texts}
    documents = list(cache.documents())
    assert len(documents) == cache.documents_count == len(by_id)
    for row, document in enumerate(documents):
        assert document.tokens.tolist() == [*tokenizer.encode(by_id[document.id]).ids, 0]
        again = cache.document(row)
        assert (again.id, again.tokens.tolist()) == (document.id, document.tokens.tolist())
    with pytest.raises(IndexError, match="document 211"):
        cache.document(cache.documents_count)


def test_shards_tell_where_they_lie_in_the_whole(small: Path) -> None:
    cache, expected = open_cache(str(small)), plain_tokens(small)
    assert {shard.source for shard in cache.shards} == {"novels", "laws", "one"}
    assert sum(shard.tokens for shard in cache.shards) == cache.tokens
    assert sum(shard.rows for shard in cache.shards) == cache.documents_count
    for shard in cache.shards:
        stop = shard.token_start + shard.tokens
        assert (cache.read(shard.token_start, stop) == expected[shard.token_start : stop]).all()
    assert require_intact(cache) > 0


def test_any_zarr_reader_opens_a_shard(small: Path) -> None:
    """The metadata on disk are those that readers take from the manifest, and the format is no private one."""
    cache = open_cache(str(small))
    for shard in cache.shards:
        specification = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{small / shard.path}/"}}
        array = tensorstore.open(specification, open=True).result()
        stop = shard.token_start + shard.tokens
        assert (array.read().result() == cache.read(shard.token_start, stop)).all()
        assumed = tensorstore.open({**specification, "metadata": cache.details.array.metadata(shard.tokens)}, open=True)
        assert assumed.result().chunk_layout == array.chunk_layout


@given(tokens=st.integers(1, 2000), chunk=st.integers(1, 300))
def test_chunks_are_equal_and_padding_is_at_most_a_token_each(tokens: int, chunk: int) -> None:
    metadata = ArrayForm("uint16", chunk, []).metadata(tokens)
    inner = metadata["codecs"][0]["configuration"]["chunk_shape"][0]
    outer = metadata["chunk_grid"]["configuration"]["chunk_shape"][0]
    assert outer % inner == 0
    assert inner <= chunk
    assert tokens <= outer < tokens + outer // inner


@given(st.lists(st.integers(0, 5000), max_size=50))
def test_the_histogram_counts_every_document_once(lengths: list[int]) -> None:
    histogram = length_histogram(np.array(lengths, np.int64))
    for power, count in histogram.items():
        assert count == sum(int(power) // 2 <= length < int(power) for length in lengths)
    assert sum(histogram.values()) == len(lengths)


# --- documents


def test_lengths_are_the_list_s_as_plain_numbers(small: Path) -> None:
    cache = open_cache(str(small))
    assert {shard.source for shard in cache.shards} == {"novels", "laws", "one"}
    for shard in cache.shards:
        listed = pq.read_table(small / f"{shard.path}.docs.parquet").column("tokens").to_numpy()
        assert (small / f"{shard.path}.lengths").read_bytes() == listed.astype("<u4").tobytes()
        assert (cache.document_lengths(shard.index) == listed).all()
        assert shard.files.lengths_xxh3 == hash_file(small / f"{shard.path}.lengths")[0]


# --- forms


def test_large_vocabularies_are_stored_as_compressed_uint32(tmp_path: Path) -> None:
    large = tokenizers.Tokenizer.from_str(trained().decode())
    large.add_tokens([f"<extra{number}>" for number in range(1 << 16)])
    texts = [f"{text} <extra{number * 329}> end" for number, text in enumerate(words(1, 200))]
    cache = open_cache(str(make_cache(tmp_path, {"web": texts}, large.to_str().encode())))
    assert (cache.contract.dtype, cache.read(0, 5).dtype) == (np.uint32, np.uint32)
    assert [codec["name"] for codec in cache.details.array.codecs] == ["bytes", "blosc"]
    by_id = {identity(text): text for text in texts}
    for document in cache.documents():
        assert document.tokens.tolist() == [*large.encode(by_id[document.id]).ids, 0]
    assert cache.read(0, cache.tokens).max() >= 1 << 16
    assert cache.shards[0].bytes < 4 * cache.tokens


def test_a_shard_is_hardly_larger_than_its_tokens(tmp_path: Path) -> None:
    texts = [" ".join(words(number, 40, 200)) for number in range(60)]
    cache = open_cache(str(make_cache(tmp_path, {"web": texts})))
    (shard,) = cache.shards
    assert shard.tokens > layout.CHUNK_TOKENS
    assert shard.bytes <= 1.02 * 2 * shard.tokens


# --- opening


def test_opening_is_one_read_and_needs_no_pipeline(small: Path) -> None:
    """In a process of its own: which files are opened, which libraries are needed."""
    program = """
import json, os, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyarrow", "numba", "tokenizers", "fastokens", "duckdb", "fsspec", "pandas"):
            raise ImportError(f"{name} is not on this machine")
sys.meta_path.insert(0, Refuse())
from datakit.cache.reader import open_cache
opened = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
cache = open_cache(sys.argv[1])
at_open = [os.path.relpath(path, sys.argv[1]) for path in opened if path.startswith(sys.argv[1])]
before = cache.requests
tokens = cache.read(0, cache.tokens)
print(json.dumps([at_open, before, cache.requests > 0, len(tokens)]))
"""
    command = [sys.executable, "-c", program, str(small)]
    done = subprocess.run(command, env={"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["manifest.json"], 0, True, open_cache(str(small)).tokens]


def test_ten_thousand_shards_open_by_their_manifest_alone(small: Path, tmp_path: Path) -> None:
    found = read_manifest(str(small))
    first, details = found.partitions[0], dict(found.details)
    partitions = [replace_path(first, f"novels/shard-{number:05d}") for number in range(10_000)]
    details["shards"] = [details["shards"][0]] * 10_000
    details["lengths"] = {"64": 10_000 * first.rows}
    sums = {"shards": 10_000, "documents": 10_000 * first.rows, "tokens": 10_000 * (first.tokens or 0), "text_bytes": 1}
    details["sources"] = {"novels": sums}
    made = msgspec.structs.replace(found, partitions=partitions, totals=totals_of(partitions), details=details)
    (tmp_path / "manifest.json").write_bytes(b"".join(manifests.pieces(made)))
    cache = open_cache(str(tmp_path))
    assert cache.tokens == sums["tokens"]
    assert cache.shards[9_999].token_start == 9_999 * (first.tokens or 0)


def replace_path(partition: manifests.Partition, path: str) -> manifests.Partition:
    return msgspec.structs.replace(partition, path=path)


# --- refusals


def test_an_unfinished_cache_says_how_to_finish_it(copied: Path) -> None:
    (copied / "manifest.json").unlink()
    with pytest.raises(NotFoundError, match=r"no manifest\.json.*datakit run"):
        open_cache(str(copied))


def test_another_stage_s_output_is_not_a_cache(small: Path) -> None:
    manifest = msgspec.structs.replace(read_manifest(str(small)), stage="consolidate")
    with pytest.raises(UsageError, match="output of stage 'consolidate'"):
        Cache("somewhere", manifest)


def test_a_manifest_that_was_altered_is_refused(small: Path) -> None:
    manifest = read_manifest(str(small))
    first = manifest.partitions[0]
    longer = [msgspec.structs.replace(first, tokens=(first.tokens or 0) + 1), *manifest.partitions[1:]]
    for altered in (
        msgspec.structs.replace(manifest, partitions=longer),
        msgspec.structs.replace(manifest, partitions=longer, totals=totals_of(longer)),
        msgspec.structs.replace(manifest, partitions=manifest.partitions[1:]),
    ):
        with pytest.raises(CorruptError, match="do not agree"):
            Cache("somewhere", altered)
    with pytest.raises(CorruptError, match="describes no token cache"):
        Cache("somewhere", msgspec.structs.replace(manifest, details={"form": 1}))
    other = msgspec.structs.replace(manifest, details={**manifest.details, "format": "datakit.cache/9"})
    with pytest.raises(CorruptError, match=r"'datakit\.cache/9'"):
        Cache("somewhere", other)


def test_a_data_file_of_another_length_or_none_is_refused(copied: Path) -> None:
    data = copied / "novels" / "shard-00000" / "c" / "0"
    whole = data.read_bytes()
    for altered in (whole[:-1], whole + b"x", None):
        data.unlink()
        if altered is not None:
            data.write_bytes(altered)
        with pytest.raises(CorruptError, match=r"shard-00000/c/0 (has|is missing)"):
            open_cache(str(copied)).read(0, 10)
        data.write_bytes(whole)
    assert len(open_cache(str(copied)).read(0, 10)) == 10


def test_validation_finds_any_altered_byte(copied: Path) -> None:
    files = [
        "novels/shard-00000/c/0",
        "novels/shard-00000/zarr.json",
        "laws/shard-00001.docs.parquet",
        "laws/shard-00001.lengths",
        "tokenizer.json",
    ]
    for name in files:
        whole = (copied / name).read_bytes()
        (copied / name).write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
        with pytest.raises(CorruptError, match=name):
            require_intact(open_cache(str(copied)))
        (copied / name).unlink()
        with pytest.raises(CorruptError, match=name):
            require_intact(open_cache(str(copied)))
        (copied / name).write_bytes(whole)
    require_intact(open_cache(str(copied)))


def test_lengths_that_are_not_those_of_the_documents_are_refused(copied: Path) -> None:
    """Also where the manifest has the checksum of what is there: lengths say where every document begins."""
    url = copied / "laws" / "shard-00000.lengths"
    index = next(shard.index for shard in open_cache(str(copied)).shards if shard.path == "laws/shard-00000")
    lengths = np.fromfile(url, "<u4")
    shifted = lengths + np.array([1, *[0] * (len(lengths) - 2), -1], "<i4").astype("<u4")
    for altered, refused in ((lengths[:-1], "has .* bytes"), (lengths + 1, "tokens together"), (shifted, None)):
        url.unlink()
        commit_bytes(altered.astype("<u4").tobytes(), str(url))
        put_checksum(copied, index)
        cache = open_cache(str(copied))
        with pytest.raises(CorruptError, match=r"shard-00000\.lengths (has|lists|and .*docs\.parquet have different)"):
            require_intact(cache)
        if refused is None:
            assert (cache.document_lengths(index) == altered).all(), "no sum tells: validation reads both lists"
        else:
            with pytest.raises(CorruptError, match=refused):
                cache.document_starts(index)


def put_checksum(directory: Path, index: int) -> None:
    """Make the manifest say of a shard's lengths what lies there."""
    manifest = read_manifest(str(directory))
    place = directory / f"{manifest.partitions[index].path}.lengths"
    manifest.details["shards"][index]["lengths_xxh3"] = hash_file(place)[0]
    (directory / "manifest.json").write_bytes(b"".join(manifests.pieces(manifest)))


def test_a_cache_of_the_format_before_is_refused_with_the_next_step() -> None:
    """`datakit.cache/1` had no files of lengths."""
    with pytest.raises(CorruptError, match=r"'datakit\.cache/1'; this version reads 'datakit\.cache/2': make it again"):
        open_cache(str(FIXTURES / "cache-1"))


def test_another_tokenizer_is_refused_with_the_difference(small: Path) -> None:
    cache = open_cache(str(small))
    cache.require_tokenizer(cache.contract.tokenizer_sha256)
    with pytest.raises(TokenizerError, match=f"{cache.contract.tokenizer_sha256}, not with {'0' * 64}"):
        cache.require_tokenizer("0" * 64)


def test_roots_that_arrays_are_not_read_from_are_refused() -> None:
    for url in ("http://example.org/cache", "hf://datasets/a/b"):
        with pytest.raises(RootError, match="from a disk, from s3:// or from gs://"):
            open_cache(url)


# --- object store


def test_the_same_cache_on_s3(small: Path, tmp_path: Path) -> None:
    """Written to and read from S3 over HTTP: the same bytes, the same tokens; a missing shard is no zeros."""
    local = clean(tmp_path / "clean", TEXTS, bits=1)
    tokenizer = small.parent / "tokenizer.json"
    with s3_root() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_TOKENS", 64)
        for path, data in contents(tmp_path / "clean").items():
            commit_bytes(data, f"{root}/clean/{path}")
        run(tokenize_step(f"{root}/cache", [replace(local, directory=f"{root}/clean")], tokenizer))
        listed = {info.path: urls.read_bytes(info.url) for info in urls.listing(f"{root}/cache")}
        expected = contents(small)
        assert {name: data for name, data in listed.items() if name != "manifest.json"} == {
            name: data for name, data in expected.items() if name != "manifest.json"
        }
        cache = open_cache(f"{root}/cache")
        assert (cache.read(0, cache.tokens) == plain_tokens(small)).all()
        assert [document.id for document in cache.documents()] == [
            document.id for document in open_cache(str(small)).documents()
        ]
        assert require_intact(cache) == require_intact(open_cache(str(small)))
        urls.remove(f"{root}/cache/novels/shard-00000/c/0")
        with pytest.raises(CorruptError, match="missing or damaged"):
            open_cache(f"{root}/cache").read(0, 10)


def test_a_remote_tokenizer_is_loaded_without_a_thread(small: Path) -> None:
    """S3's driver runs a thread of its own; the fork server must have none, so another process reads the file."""
    program = """
import sys
from pathlib import Path
from datakit.tokenize.encoders.tokenizer import load
tokenizer = load(sys.argv[1])
print(tokenizer.sha256, *[(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()])
"""
    with s3_root() as root:
        commit_bytes((small / "tokenizer.json").read_bytes(), f"{root}/tokenizer.json")
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-c", program, f"{root}/tokenizer.json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    sha256, *threads = done.stdout.split()
    assert sha256 == open_cache(str(small)).contract.tokenizer_sha256
    assert len([name for name in threads if name != "jemalloc_bg_thd"]) == 1


def test_manifests_of_unchanged_steps_are_equal(tmp_path: Path) -> None:
    source, tokenizer = clean(tmp_path / "clean", TEXTS, bits=1), tmp_path / "tokenizer.json"
    tokenizer.write_bytes(trained())
    manifests_of: list[Manifest] = [
        run(replace(tokenize_step(tmp_path / name, [source], tokenizer), stage="tokenize")) for name in "ab"
    ]
    assert msgspec.to_builtins(manifests_of[0]) == msgspec.to_builtins(manifests_of[1])
    assert array_form(np.dtype(np.uint16)).dtype == manifests_of[0].details["array"]["dtype"]
