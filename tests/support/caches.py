"""Token caches for tests: made from texts by the real stage, or from random tokens by the real writer."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers

from datakit.cache.contract import Contract
from datakit.cache.layout import STAGE, CacheDetails, shard_name
from datakit.cache.writer import Documents, write_shard
from datakit.cache.written_shards import cache_details
from datakit.engine.task import Step, StepInput, TaskContext
from datakit.storage import urls
from datakit.storage.atomic import commit_bytes
from datakit.storage.manifest import (
    Manifest,
    Partition,
    Quarantine,
    data_path,
    find_manifest,
    read_manifest,
    totals_of,
    write_manifest,
)
from datakit.tokenize import contract_stage, stage
from datakit.tokenize.encoders.tokenizer import Tokenizer, parse
from datakit.tokenize.make_contract import make_contract
from datakit.tokenize.train_stage import Config, train
from tests.support.engine.inline import finish_inline, run_plan_inline
from tests.support.partitions import normalized, selection, step, words

RANDOM_SHARDS = [70_000, 1, 0, 131_072, 33_333]  # tokens
SMALL_TEXTS = {"novels": words(1, 150), "empty": [], "laws": words(2, 60), "one": ["a"]}
CHOICES = {"encoder": "auto", "add": "eos", "bos": None, "eos": None}


@functools.cache
def trained(vocabulary: int = 400) -> bytes:
    """A tokenizer.json of a small byte-level BPE, trained on made-up words."""
    return train([words(0, 200)], Config(vocabulary=vocabulary))[0]


def load_tokenizer(data: bytes | None = None) -> Tokenizer:
    """The tokenizer in a tokenizer.json, by default the trained one."""
    tokenizer = parse(data or trained(), "here")
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


def contract_of(data: bytes, add: str = "eos", bos: str | None = None, eos: str | None = None) -> Contract:
    """The contract of a tokenizer.json."""
    tokenizer = load_tokenizer(data)
    return make_contract(tokenizer, tokenizer.encoder("auto"), add, bos, eos)


def clean(
    directory: Path,
    sources: Mapping[str, Sequence[str]],
    bits: int = 0,
    leaving: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
) -> list[StepInput]:
    """Make a normalized dataset and its selection. leaving: for each source, id -> reasons; by default, all documents
    stay.
    """
    inputs = [normalized(directory, name, texts, bits) for name, texts in sources.items()]
    return [*inputs, selection(directory / "selection", inputs, leaving)]


def tokenize_step(directory: str | Path, inputs: Sequence[StepInput], tokenizer: Path, **choices: Any) -> Step:
    """The step that makes a cache in `directory` with a tokenizer file. Its contract is made beside the tokenizer."""
    sha256 = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    settings = {**CHOICES, "tokenizer_sha256": sha256, **choices}
    settled = contract(tokenizer.parent, settings, operations={"tokenizer_path": str(tokenizer)})
    return replace(step(Path("unused"), "tokenize", [*inputs, settled], **settings), directory=str(directory))


def contract(
    root: Path,
    settings: Mapping[str, Any],
    inputs: Sequence[StepInput] = (),
    operations: Mapping[str, Any] = MappingProxyType({}),
) -> StepInput:
    """The finished contract step with these settings of the tokenize stage, in a directory of its own below `root`."""
    names = {field.name for field in fields(contract_stage.Config)} & {*settings}
    made = step(root, contract_stage.NAME, inputs, **{name: settings[name] for name in names})
    made = replace(made, directory=str(root / f"contract-{made.fingerprint}"), operations=dict(operations))
    if (done := find_manifest(made.directory)) is None:
        output, results = run_plan_inline(contract_stage.plan(made), made.directory)
        done = finish_inline(made, output, results)
    return StepInput(contract_stage.NAME, None, made.directory, done)


def run(made: Step) -> Manifest:
    """Run a tokenize step to its manifest, in this process."""
    output, results = run_plan_inline(stage.plan(made), made.directory)
    return finish_inline(made, output, results)


def make_cache(
    root: Path, sources: Mapping[str, Sequence[str]], tokenizer: bytes | None = None, bits: int = 0, **choices: Any
) -> Path:
    """A finished cache of these texts; its directory."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / "tokenizer.json"
    path.write_bytes(tokenizer or trained())
    run(tokenize_step(root / "cache", clean(root / "clean", sources, bits), path, **choices))
    return root / "cache"


def reference_tokens(directory: Path) -> np.ndarray:
    """All tokens of a cache by `make_cache` of two partitions a source, from the clean text and `tokenizers` alone."""
    tokenizer, tokens = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json")), []
    for partition in read_manifest(str(directory)).partitions:
        name = f"part-{int(partition.path[-5:]):05d}-of-00002.parquet"
        for text in pq.read_table(directory.parent / "clean" / partition.source / data_path(partition.source, name))[
            "text"
        ].to_pylist():
            tokens += [*tokenizer.encode(text).ids, 0]
    return np.array(tokens, np.uint16)


def random_cache(
    folder: Path, dtype: type, shards: Sequence[int] = RANDOM_SHARDS, masks: bool = False
) -> tuple[Path, np.ndarray]:
    """A cache of random tokens, ten documents a shard, and all its tokens; with `masks` every second shard has one."""
    sha256 = hashlib.sha256(b"{}").hexdigest()
    contract = Contract(sha256, "none", 50_000 if dtype is np.uint16 else 200_000, None, None, [])
    generator, directory = np.random.default_rng(len(shards)), folder / "cache"
    commit_bytes(b"{}", str(directory / "tokenizer.json"))
    every, written = [], []
    for number, count in enumerate(shards):
        tokens = generator.integers(0, contract.vocabulary_size, count).astype(dtype)
        every.append(tokens)
        cuts = np.sort(generator.integers(0, count + 1, 9)) if count else np.zeros(9, np.int64)
        sizes = np.diff(np.concatenate([[0], cuts, [count]]))
        ids = pa.array([f"{number:016x}{row:016x}" for row in range(len(sizes))])
        mask = (tokens % 3 == 0).astype(np.uint8) if masks and number % 2 else None
        context = TaskContext(str(directory), folder, 1)
        shard, _ = write_shard(
            "web", shard_name("web", number), [Documents(ids, tokens, sizes, mask)], contract, context
        )
        written.append(shard)
    write_cache_manifest(directory, [shard.partition for shard in written], cache_details(written, contract))
    return directory, np.concatenate(every)


def write_cache_manifest(directory: Path, partitions: list[Partition], details: CacheDetails) -> None:
    """Finish a cache that no step made."""
    totals, plain, mark = totals_of(partitions), msgspec.to_builtins(details), "0" * 32
    made = Manifest(STAGE, "test", mark, mark, {}, [], [], partitions, totals, {}, Quarantine(0), plain)
    write_manifest(made, str(directory))


def upload(directory: Path, root: str) -> None:
    """Copy a directory to an object store."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            file_system, remote = urls.filesystem(f"{root}/{path.relative_to(directory)}")
            file_system.put_file(str(path), remote)
