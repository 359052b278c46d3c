"""From the `[data]` table of a run to its batches: caches, mixture, loader, validation sets, bytes of tokens.

    [data]
    sequence_length = 4096                  # or [[0, 4096], [90_000, 32_768]]: from step 90,000 on
    batch_size = 512

    [data.components.web]
    cache = "data/demo"                     # a cache, or a dataset's folder with one finished cache in it
    source = "web"                          # one source of the cache; without, all of it
    weight = 0.9
    validation_tokens = 2_000_000           # whole documents, held out; evaluated under the component's name

    [data.components.code]
    cache = "data/demo"
    source = "code"
    weight = 0.1
    packing = { too_long = "split" }

    [[data.stages]]                         # instead of the weights above
    weights = { web = 0.5, code = 0.5 }
    start_step = 90_000

    [data.evaluation."exams/law"]           # further validation sets
    cache = "data/exams"

Every cache must have been made with one tokenizer. Relative paths are relative to the file;
{root} is the command's --root.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from datakit.errors import RecipeError, TokenizerError, UsageError
from datakit.loader import Component, Loader, Mixture, Packing, Schedule, Shuffle, Stage, held_out_mixture, open_source
from datakit.recipe import absolute, check_keys, convert
from datakit.storage import urls
from datakit.storage.manifest import InputReference, find_manifest, manifest_url
from datakit.tokenize.reader import Cache, open_cache
from datakit.trainer.evaluate import BatchesOf, token_byte_lengths

ROOT = "{root}/"
MULTIPLE = 128  # of which a vocabulary is, where a run names none: matrix units like it


@dataclass(frozen=True)
class ComponentTable:
    """`[data.components.<name>]`; the names and defaults are those of `loader.Component`."""

    cache: str
    source: str | None = None
    weight: float = 1.0
    validation_tokens: int = 0
    max_epochs: int | None = None
    packing: Packing | None = None
    shuffle: Shuffle = field(default_factory=Shuffle)


@dataclass(frozen=True)
class EvaluationTable:
    """`[data.evaluation.<tag>]`: all of a cache, or of one source of it."""

    cache: str
    source: str | None = None


@dataclass(frozen=True)
class DataTable:
    """`[data]`; the names and defaults are those of `loader.Mixture`."""

    components: dict[str, ComponentTable]
    stages: list[Stage] | None = None
    evaluation: dict[str, EvaluationTable] = field(default_factory=dict)
    sequence_length: int | list[tuple[int, int]] = 4096
    batch_size: int | list[tuple[int, int]] = 32
    seed: int = 0
    block: int = 2048
    stop: str = "restart"
    memory_bytes: int = 1 << 30


@dataclass(frozen=True)
class Data:
    """What a run reads. `vocabulary` is the tokenizer's, rounded up; `token_bytes` is None where it is not known."""

    mixture: Mixture
    evaluations: Mapping[str, BatchesOf]
    token_bytes: np.ndarray | None
    vocabulary: int
    caches: Mapping[str, Cache]  # by directory
    notes: tuple[str, ...] = ()

    def loader(self) -> Loader:
        """The training batches; close it at the end."""
        return Loader(self.mixture)

    def inputs(self, directory: str) -> list[InputReference]:
        """The caches as inputs of the step in `directory`."""
        return [
            InputReference("tokenize", _relative(manifest_url(cache), directory), opened.manifest.identity)
            for cache, opened in sorted(self.caches.items())
        ]


def parse_data(table: dict[str, Any], place: str) -> DataTable:
    """The table, strictly. Raises RecipeError with the nearest valid name."""
    if not table.get("components"):
        raise RecipeError(f"{place}: no data; add a [data.components.<name>] table with a cache")
    check_keys(table, [entry.name for entry in fields(DataTable)], f"{place}, [data]")
    for group, kind in (("components", ComponentTable), ("evaluation", EvaluationTable)):
        for name, entry in table.get(group, {}).items():
            check_keys(entry, [known.name for known in fields(kind)], f"{place}, [data.{group}.{name}]")
    for number, stage in enumerate(table.get("stages", [])):
        check_keys(stage, [known.name for known in fields(Stage)], f"{place}, [[data.stages]] {number}")
    return convert(table, DataTable, f"{place}, [data]")


def open_data(table: DataTable, base: Path, root: str = "./data") -> Data:
    """Open the caches; `base` is what relative paths are relative to. Raises TokenizerError and other InputErrors."""
    named = [*table.components.values(), *table.evaluation.values()]
    caches = {entry.cache: open_cache(find_cache(_place(entry.cache, base, root))) for entry in named}
    first = next(iter(caches.values()))
    for cache in caches.values():
        first.contract.require(cache.contract.tokenizer_sha256, first.directory)
    components = {name: _component(entry, caches[entry.cache]) for name, entry in table.components.items()}
    mixture = Mixture(
        components=components,
        stages=table.stages or {name: entry.weight for name, entry in table.components.items()},
        seed=table.seed,
        sequence_length=_schedule(table.sequence_length),
        batch_size=_schedule(table.batch_size),
        block=table.block,
        stop=table.stop,
        memory_bytes=table.memory_bytes,
    )
    token_bytes, notes = _token_bytes(first)
    size = first.contract.vocabulary_size
    return Data(
        mixture,
        _evaluations(table, mixture, caches),
        token_bytes,
        -(-size // MULTIPLE) * MULTIPLE,
        {cache.directory: cache for cache in caches.values()},
        notes,
    )


def _place(cache: str, base: Path, root: str) -> str:
    return urls.join(urls.absolute(root), cache.removeprefix(ROOT)) if cache.startswith(ROOT) else absolute(cache, base)


def find_cache(directory: str) -> str:
    """A cache's directory: this one, or the one finished cache of the dataset that lies here. Raises UsageError."""
    if find_manifest(directory) is not None or not urls.is_local(directory):
        return directory
    entries = sorted(Path(directory).glob("tokenize-*")) if Path(directory).is_dir() else []
    finished = [str(entry) for entry in entries if find_manifest(str(entry)) is not None]
    if len(finished) == 1:
        return finished[0]
    if not finished:
        raise UsageError(f"{directory} holds no finished token cache; run the recipe that makes it first")
    names = ", ".join(os.path.basename(entry) for entry in finished)
    raise UsageError(f"{directory} holds {len(finished)} token caches; name one of them: {names}")


def _component(entry: ComponentTable, cache: Cache) -> Component:
    return Component(
        open_source(cache.directory, entry.source),
        packing=entry.packing,
        shuffle=entry.shuffle,
        validation_tokens=entry.validation_tokens,
        max_epochs=entry.max_epochs,
    )


def _schedule(value: int | list[tuple[int, int]]) -> int | Schedule:
    return value if isinstance(value, int) else Schedule(tuple((step, size) for step, size in value))


def _evaluations(table: DataTable, mixture: Mixture, caches: Mapping[str, Cache]) -> dict[str, BatchesOf]:
    length, rows = mixture.lengths.at(0), mixture.batches.at(0)
    sets = {
        name: held_out_mixture(mixture, name, sequence_length=length, batch_size=rows)
        for name, component in mixture.components.items()
        if component.validation_tokens
    }
    for tag, entry in table.evaluation.items():
        if tag in sets:
            raise UsageError(f"[data.evaluation.{tag}] has the name of a component that holds documents out; rename it")
        sets[tag] = Mixture(
            {tag: Component(open_source(caches[entry.cache].directory, entry.source), shuffle=Shuffle("none"))},
            {tag: 1.0},
            sequence_length=length,
            batch_size=rows,
            stop="first_exhausted",
            final_batch="pad",
            memory_bytes=mixture.memory_bytes,
        )
    return {tag: _Pass(one) for tag, one in sets.items()}


@dataclass(frozen=True)
class _Pass:
    """One pass over a validation set, opened anew each time."""

    mixture: Mixture

    def __call__(self) -> Iterator[Any]:
        with Loader(self.mixture) as loader:
            yield from loader.iterate()


def _token_bytes(cache: Cache) -> tuple[np.ndarray | None, tuple[str, ...]]:
    try:
        return token_byte_lengths(urls.read_bytes(cache.tokenizer_url), cache.tokenizer_url), ()
    except TokenizerError as error:
        return None, (f"no bits per byte: {error}",)


def _relative(url: str, directory: str) -> str:
    return urls.relative(url, directory) if urls.is_local(url) == urls.is_local(directory) else url
