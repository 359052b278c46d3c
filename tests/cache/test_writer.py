"""Tests of the files that the shard writer commits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tokenizers

from datakit.cache import layout
from datakit.cache.contract import Contract
from datakit.cache.reader import open_cache
from datakit.cache.writer import Documents, write_shard
from datakit.engine.task import TaskContext
from datakit.errors import CorruptError
from tests.support.caches import clean, make_cache, run, tokenize_step, trained
from tests.support.partitions import identity, words


def large_tokenizer() -> tokenizers.Tokenizer:
    """More than 65,536 ids: unreachable tokens, then three added ones."""
    definition = json.loads(trained())
    vocabulary = definition["model"]["vocab"]
    vocabulary |= {f"unreachable {number}": number for number in range(len(vocabulary), (1 << 16) + 10)}
    large = tokenizers.Tokenizer.from_str(json.dumps(definition))
    large.add_tokens(["<extra0>", "<extra1>", "<extra2>"])
    return large


def test_large_vocabularies_are_stored_as_compressed_uint32(tmp_path: Path) -> None:
    large = large_tokenizer()
    texts = [f"{text} <extra{number % 3}> end" for number, text in enumerate(words(1, 100))]
    cache = open_cache(str(make_cache(tmp_path, {"web": texts}, large.to_str().encode())))
    assert (cache.contract.dtype, cache.read(0, 5).dtype) == (np.uint32, np.uint32)
    assert [codec["name"] for codec in cache.details.array.codecs] == ["bytes", "blosc"]
    by_id = {identity(text): text for text in texts}
    for document in cache.documents():
        assert document.tokens.tolist() == [*large.encode(by_id[document.id]).ids, 0]
    assert cache.read(0, cache.tokens).max() >= 1 << 16
    assert cache.shards[0].bytes < 4 * cache.tokens


def test_shard_is_hardly_larger_than_its_tokens(tmp_path: Path) -> None:
    texts = [" ".join(words(number, 40, 200)) for number in range(60)]
    cache = open_cache(str(make_cache(tmp_path, {"web": texts})))
    (shard,) = cache.shards
    assert shard.tokens > layout.CHUNK_TOKENS
    assert shard.bytes <= 1.02 * 2 * shard.tokens


def test_every_byte_is_written_once(tmp_path: Path) -> None:
    """Compares the bytes this process handed to the system with the size of the cache."""
    source = clean(tmp_path, {"web": [f"{number} " + "words and more " * 20_000 for number in range(20)]})
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(trained())
    made = tokenize_step(tmp_path / "cache", source, tokenizer)

    def written() -> int:
        return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["wchar"])

    before = written()
    run(made)
    size = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert written() - before <= 1.02 * size + 4096


def small_contract() -> Contract:
    return Contract("0" * 64, "none", 50_000, None, None, [])


def batch(tokens: np.ndarray) -> Documents:
    return Documents(pa.array(["0" * 32]), tokens, np.array([len(tokens)]))


def test_raw_shard_is_written_while_its_documents_arrive(tmp_path: Path) -> None:
    """So the writer holds no more than a batch, however large the shard is."""
    tokens, sizes = np.arange(40_000, dtype=np.uint16), list[int]()

    def parts() -> Iterator[Documents]:
        for _ in range(3):
            yield batch(tokens)
            (staged,) = (tmp_path / "data/web/shard-00000/c").iterdir()
            sizes.append(staged.stat().st_size)

    write_shard("web", "data/web/shard-00000", parts(), small_contract(), TaskContext(str(tmp_path), tmp_path))
    assert all(size > (number + 0.9) * tokens.nbytes for number, size in enumerate(sizes)), sizes
    assert [path.name for path in (tmp_path / "data/web/shard-00000/c").iterdir()] == ["0"]


def test_nothing_is_committed_if_the_documents_end_in_an_error(tmp_path: Path) -> None:
    def parts() -> Iterator[Documents]:
        yield batch(np.arange(40_000, dtype=np.uint16))
        raise CorruptError("no more documents")

    with pytest.raises(CorruptError, match="no more documents"):
        write_shard("web", "data/web/shard-00000", parts(), small_contract(), TaskContext(str(tmp_path), tmp_path))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_shard_without_tokens_has_no_array(tmp_path: Path) -> None:
    parts = [batch(np.empty(0, np.uint16))]
    write_shard("web", "data/web/shard-00000", parts, small_contract(), TaskContext(str(tmp_path), tmp_path))
    found = sorted(path.name for path in (tmp_path / "data/web").iterdir())
    assert found == ["shard-00000.docs.parquet", "shard-00000.lengths"]
