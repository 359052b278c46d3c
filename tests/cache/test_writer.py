"""Tests of the files that the shard writer commits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tokenizers

from datakit.cache import layout
from datakit.cache.reader import open_cache
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
