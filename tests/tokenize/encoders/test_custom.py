"""Tests of tokenizers that are code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datakit
from datakit.cache.contract import Special
from datakit.cache.reader import open_cache
from datakit.recipe import parse_recipe
from datakit.validate.token_cache import require_intact
from tests.support.caches import CHOICES, clean, run
from tests.support.dna import Codons
from tests.support.partitions import step


def run_recipe(root: Path, sources: list[dict[str, Any]], tokenize: dict[str, Any]) -> Path:
    """The whole pipeline, in real worker processes, to a cache; its directory."""
    recipe = parse_recipe({"name": "made", "sources": sources, "tokenize": tokenize}, "test", root)
    (step,) = datakit.run(recipe, root=str(root / "root"), workers=2).steps_of("tokenize")
    return Path(step.directory)


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_bytes_are_tokens(tmp_path: Path) -> None:
    texts = ["plain", "naïve <|endoftext|> 漢字", "x" * 300_000]
    made = step(tmp_path / "cache", "tokenize", [clean(tmp_path, {"web": texts})], **CHOICES, tokenizer="bytes")
    run(made)
    cache = open_cache(str(tmp_path / "cache"))
    contract = cache.contract
    assert (contract.encoder, contract.vocabulary_size, contract.eos) == ("bytes", 257, Special("<|endoftext|>", 256))
    found = sorted(bytes(document.tokens[:-1].astype(np.uint8)).decode() for document in cache.documents())
    assert found == sorted(texts)
    assert all(document.tokens[-1] == 256 for document in cache.documents())
    assert require_intact(cache) > 0


def test_custom_tokenizer_is_known_by_name_and_version(tmp_path: Path) -> None:
    texts = ["ACGTTTGGA", "AAANCCGGGTT"]
    sources = [{"name": "genes", "url": write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in texts])}]
    own = {"tokenizer": "tests.support.dna:codons", "eos": "<eos>"}
    cache = open_cache(str(run_recipe(tmp_path, sources, {**own, "tokenizer_version": "2"})))
    expected = sorted([*Codons().encode_batch([text])[0].tolist(), 65] for text in texts)
    assert sorted(document.tokens.tolist() for document in cache.documents()) == expected
    said = json.loads((Path(cache.directory) / "tokenizer.json").read_text())
    assert (said["name"], said["version"], said["vocabulary_size"]) == ("codons", "2", 66)
    with pytest.raises(datakit.errors.DatakitError, match="has version '2', the recipe says '3'"):
        run_recipe(tmp_path, sources, {**own, "tokenizer_version": "3"})
    with pytest.raises(datakit.errors.DatakitError, match="also set tokenizer_version = '2'"):
        run_recipe(tmp_path, sources, own)
