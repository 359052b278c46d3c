"""Tests of tokenizers that are code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import datakit
from datakit.cache.contract import Special
from datakit.cache.layout import CacheDetails
from datakit.cache.reader import Cache, open_cache
from datakit.errors import TokenizerError, UserCodeError
from datakit.recipe import parse_recipe
from datakit.tokenize.encoders.custom import CheckedEncoder
from datakit.tokenize.encoders.tokenizer import parse
from datakit.validate.finding import Result
from datakit.validate.inside import contract_claims
from datakit.validate.intact import require_intact
from datakit.validate.subject import Subject
from tests.support.caches import CHOICES, clean, contract, make_cache, run, trained
from tests.support.partitions import step
from tests.support.paths import REPOSITORY
from tests.support.tokens.dna import Codons

CODONS = "tests.support.tokens.dna:codons"


def tokenize_with(folder: Path, texts: list[str], tokenizer: str, **settings: Any) -> Cache:
    """A cache of these texts, made in this process."""
    parameters = {**CHOICES, "tokenizer": tokenizer, **settings}
    inputs = [*clean(folder / "clean", {"web": texts}), contract(folder, parameters)]
    run(step(folder / "cache", "tokenize", inputs, **parameters))
    return open_cache(str(folder / "cache"))


def test_bytes_are_tokens(tmp_path: Path) -> None:
    texts = ["plain", "naïve <|endoftext|> 漢字", "x" * 300_000]
    cache = tokenize_with(tmp_path, texts, "bytes")
    made = cache.contract
    assert (made.encoder, made.vocabulary_size, made.eos) == ("bytes", 257, Special("<|endoftext|>", 256))
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
        (["high"], TokenizerError, r"1 ids \(highest: 99\) and 1 lengths \(sum: 1\) for 1 texts; .* vocabulary_size"),
        (["list"], TokenizerError, "returned list as its ids; these must be a one-dimensional numpy array of uint32"),
    ],
)
def test_faults_of_a_custom_tokenizer_are_described(texts: list[str], error: type, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        CheckedEncoder(Broken()).encode_batch(texts)
    assert "secret" not in str(caught.value)


def description(function: str, **changes: Any) -> bytes:
    """The content of a tokenizer.json that names a function."""
    facts = {"name": "x", "version": "1", "vocabulary_size": 2, "special": {}}
    return json.dumps({"datakit_tokenizer": function, **facts, **changes}).encode()


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the importable module `canary` writes when it is imported."""
    written = tmp_path / "imported"
    (tmp_path / "canary.py").write_text(f"open({str(written)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return written


@pytest.mark.parametrize("before", [b"", b"\n\n ", b" " * 200])
@pytest.mark.parametrize("function", ["canary:make", "canary:", "canary", "datakit.tokenize.encoders.custom:resolve"])
def test_code_that_a_file_names_is_never_imported(canary: Path, before: bytes, function: str) -> None:
    with pytest.raises(TokenizerError, match="datakit imports no code that a file names"):
        parse(before + description(function), "here")
    with pytest.raises(TokenizerError, match="datakit imports no code that a file names"):
        parse(before + description(function), "here", code="another:function")
    assert not canary.exists()


def test_recipe_whose_tokenizer_file_names_code_is_refused(canary: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"set tokenize\.tokenizer = 'canary:make' in the recipe"):
        make_cache(tmp_path / "made", {"web": ["text"]}, description("canary:make"))
    assert not canary.exists()


@pytest.mark.parametrize(
    "data",
    [
        description("canary:make", special=[]),
        description("canary:make", vocabulary_size="2"),
        description("canary:make", more=1),
        description("bytes", name=None),
        b'{"datakit_tokenizer": ["canary:make"]}',
        b'{"datakit_tokenizer": "canary:make"',
        b'{"datakit_tokenizer": {}}',
    ],
)
def test_malformed_descriptions_are_refused(canary: Path, data: bytes) -> None:
    with pytest.raises(TokenizerError, match="here is not the description of a custom tokenizer"):
        parse(data, "here")
    assert not canary.exists()


def test_mark_inside_a_tokenizer_file_has_no_meaning() -> None:
    data = trained()
    assert data.startswith(b"{")
    marked = b'{"datakit": "datakit_tokenizer",' + data[1:]
    with pytest.raises(TokenizerError, match=r"is not a tokenizer\.json that `tokenizers` can read"):
        parse(marked, "here")


def test_a_changed_description_of_a_built_in_tokenizer_is_refused() -> None:
    with pytest.raises(TokenizerError, match="tokenizer 'bytes' differs from this description in name, vocabulary"):
        parse(description("bytes"), "here")


READ = """
import sys
from datakit.cli import main

cache = sys.argv[1]
for words in (["cache", "show", cache], ["cache", "stats", cache], ["cache", "validate", cache], ["inspect", cache]):
    try:
        code = main(words)
    except SystemExit as exit:
        code = exit.code
    print(words[:2], code)
print([name for name in sys.modules if name.startswith("tests")])
"""


def test_reading_a_cache_imports_nothing_that_it_names(tmp_path: Path) -> None:
    """The module is installed, as it was where the cache was made."""
    tokenize_with(tmp_path, ["ACGTTT", "AAACCC"], CODONS, tokenizer_version="2", eos="<eos>")
    command = [sys.executable, "-P", "-c", READ, str(tmp_path / "cache")]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("\n[]\n"), done.stdout + done.stderr
    assert "names the Python function 'tests.support.tokens.dna:codons' as its tokenizer" in done.stderr


def test_validation_compares_a_contract_with_the_description_of_its_code(tmp_path: Path) -> None:
    cache = tokenize_with(tmp_path, ["ACGTTT", "AAACCC"], CODONS, tokenizer_version="2", eos="<eos>")
    directory = str(tmp_path / "cache")
    assert require_intact(cache) > 0
    details = msgspec.convert(cache.manifest.details, CacheDetails)
    for field, value in (("vocabulary_size", 67), ("eos", Special("<eos>", 64)), ("eos", Special("<none>", 65))):
        altered = msgspec.structs.replace(details.contract, **{field: value})
        result, forged = Result("contract"), msgspec.structs.replace(details, contract=altered)
        contract_claims.check(Subject(directory, cache.manifest, (), forged), result)
        assert [field in found.difference for found in result.findings] == [True]
