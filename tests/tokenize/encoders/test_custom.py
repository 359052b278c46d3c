"""Tests of tokenizers that are code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datakit
from datakit.cache.contract import Special
from datakit.cache.reader import Cache, open_cache
from datakit.errors import TokenizerError, UserCodeError
from datakit.recipe import parse_recipe
from datakit.tokenize.encoders.custom import CheckedEncoder
from datakit.validate.token_cache import require_intact
from tests.support.caches import CHOICES, clean, run
from tests.support.partitions import step
from tests.support.tokens.dna import Codons

CODONS = "tests.support.tokens.dna:codons"


def tokenize_with(folder: Path, texts: list[str], tokenizer: str, **settings: Any) -> Cache:
    """A cache of these texts, made in this process."""
    parameters = {**CHOICES, "tokenizer": tokenizer, **settings}
    run(step(folder / "cache", "tokenize", [clean(folder / "clean", {"web": texts})], **parameters))
    return open_cache(str(folder / "cache"))


def test_bytes_are_tokens(tmp_path: Path) -> None:
    texts = ["plain", "naïve <|endoftext|> 漢字", "x" * 300_000]
    cache = tokenize_with(tmp_path, texts, "bytes")
    contract = cache.contract
    assert (contract.encoder, contract.vocabulary_size, contract.eos) == ("bytes", 257, Special("<|endoftext|>", 256))
    found = sorted(bytes(document.tokens[:-1].astype(np.uint8)).decode() for document in cache.documents())
    assert found == sorted(texts)
    assert all(document.tokens[-1] == 256 for document in cache.documents())
    assert require_intact(cache) > 0


def test_recipe_names_a_custom_tokenizer(tmp_path: Path) -> None:
    """Through the pipeline, whose worker processes import the tokenizer."""
    texts = ["ACGTTTGGA", "AAANCCGGGTT"]
    (tmp_path / "genes.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    table = {
        "name": "made",
        "sources": [{"name": "genes", "url": str(tmp_path / "genes.jsonl")}],
        "tokenize": {"tokenizer": CODONS, "tokenizer_version": "2", "eos": "<eos>"},
    }
    recipe = parse_recipe(table, "test", tmp_path)
    (made,) = datakit.run(recipe, root=str(tmp_path / "root"), workers=1).steps_of("tokenize")
    found = sorted(document.tokens.tolist() for document in open_cache(made.directory).documents())
    assert found == sorted([*Codons().encode_batch([text])[0].tolist(), 65] for text in texts)
    described = json.loads((Path(made.directory) / "tokenizer.json").read_text())
    assert (described["name"], described["version"], described["vocabulary_size"]) == ("codons", "2", 66)


@pytest.mark.parametrize(
    ("version", "message"),
    [("3", "has version '2', but the recipe states '3'"), (None, "also set tokenizer_version = '2'")],
)
def test_custom_tokenizer_of_another_version_is_refused(tmp_path: Path, version: str | None, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        tokenize_with(tmp_path, ["ACGT"], CODONS, tokenizer_version=version, eos="<eos>")


class Broken(Codons):
    """A tokenizer whose result depends on the text: a failure, ids out of range, or a list."""

    def encode_batch(self, texts: Sequence[str]) -> tuple[Any, np.ndarray]:
        if "fail" in texts:
            raise ValueError(f"no codon in {texts[0]!r}")
        ids = np.array([99 if "high" in texts else 1] * len(texts), np.uint32)
        return ids.tolist() if "list" in texts else ids, np.ones(len(texts), np.int64)


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        (["secret", "fail"], UserCodeError, r"received a list of 2 strings\n[\s\S]*ValueError: no codon in \.\.\. \("),
        (["high"], TokenizerError, "1 ids, up to 99, and 1 lengths with the sum 1 for 1 texts; its vocabulary has 66"),
        (["list"], TokenizerError, "returned list as its ids; these must be a one-dimensional numpy array of uint32"),
    ],
)
def test_faults_of_a_custom_tokenizer_are_described(texts: list[str], error: type, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        CheckedEncoder(Broken()).encode_batch(texts)
    assert "secret" not in str(caught.value)
