"""Opens the `[data]` table of a run file: finds the caches, checks that all have the same tokenizer, builds the mixture
and the validation sets, and rounds up the default vocabulary size.

    [data.components.web]                   # other keys are as in a mixture file (loader/mixture/toml_file.py)
    cache = "data/demo"                     # a cache, or a dataset directory that holds exactly one finished cache
    source = "web"
    validation_tokens = 2_000_000           # tokens of held-out documents, evaluated under the component's name

    [data.evaluation."exams/law"]           # a further validation set, in addition to held-out documents
    cache = "data/exams"

    [data]                                  # alternatively, a mixture file; then only `evaluation` may be added
    mixture = "mix.toml"

Paths are relative to the run file. At the start of a `cache` path, {root}/ stands for the command's --root. The root
also holds the sequence counts that `datakit mixture pack` writes for packed components.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from datakit.cache.reader import Cache, open_cache
from datakit.errors import LoaderError, RecipeError, TokenizerError, UsageError
from datakit.loader import Component, Loader, Mixture, Shuffle, held_out_mixture, one_pass, open_source
from datakit.loader.mixture.toml_file import load_mixture, mixture_of
from datakit.loader.sources.cache_source import CacheSource
from datakit.recipe import absolute
from datakit.storage import urls
from datakit.storage.manifest import InputReference, find_manifest, manifest_url
from datakit.toml_config import decoded
from datakit.trainer.evaluate import BatchesOf, check_tags, token_byte_lengths

ROOT = "{root}/"
MULTIPLE = 128  # default vocabulary sizes are rounded up to a multiple of this, as matrix units use blocks of 128


@dataclass(frozen=True)
class EvaluationTable:
    """A `[data.evaluation.<tag>]` table, which names a whole cache or one source in it."""

    cache: str
    source: str | None = None


@dataclass(frozen=True)
class Data:
    """The data of a run."""

    mixture: Mixture
    evaluations: Mapping[str, BatchesOf]
    token_bytes: np.ndarray | None  # the length of each token in bytes [V]; None: unknown
    vocabulary: int  # the tokenizer's vocabulary size, rounded up
    caches: Mapping[str, Cache]  # keyed by directory
    notes: tuple[str, ...] = ()

    def loader(self) -> Loader:
        """Open a loader for this process's rows of the training batches; close it after use."""
        return Loader(self.mixture, host=jax.process_index(), hosts=jax.process_count())

    def inputs(self, directory: str) -> list[InputReference]:
        """Return references to the caches, for the manifest of the run in `directory`."""
        return [
            InputReference("tokenize", _relative(manifest_url(cache), directory), opened.manifest.identity)
            for cache, opened in sorted(self.caches.items())
        ]


def open_data(table: Mapping[str, Any], file: Path, root: str = "./data") -> Data:
    """Open the data that a `[data]` table defines. Raises RecipeError, UsageError, TokenizerError and LoaderError."""
    settings, evaluation = _with_places(table, file, root)
    mixture = _mixture(settings, file, root)
    sets = {tag: open_source(entry.cache, entry.source) for tag, entry in evaluation.items()}
    sources = [*(component.source for component in mixture.components.values()), *sets.values()]
    caches = {
        url: open_cache(url) for url in sorted({source.url for source in sources if isinstance(source, CacheSource)})
    }
    first = next(iter(caches.values()))
    for cache in caches.values():
        first.contract.require(cache.contract.tokenizer_sha256, first.directory)
    token_bytes, notes = _token_bytes(first)
    vocabulary = -(-first.contract.vocabulary_size // MULTIPLE) * MULTIPLE
    return Data(mixture, _evaluations(mixture, sets), token_bytes, vocabulary, caches, notes)


def _with_places(table: Mapping[str, Any], file: Path, root: str) -> tuple[dict[str, Any], dict[str, EvaluationTable]]:
    """Return the mixture's keys and the evaluation tables, with each cache replaced by its directory."""
    settings = dict(table)
    place = f"{file}, [data.evaluation"
    evaluation = {
        tag: decoded(entry, EvaluationTable, f"{place}.{tag}]", LoaderError)
        for tag, entry in settings.pop("evaluation", {}).items()
    }
    if not settings:
        raise RecipeError(f"{file}: no data; add a [data] table with components and stages, or with `mixture`")
    if "mixture" not in settings:
        tables = settings.get("components", {}).items()
        found = {name: {**entry, "cache": _place(entry.get("cache", ""), file, root)} for name, entry in tables}
        settings["components"] = found
    elif others := ", ".join(sorted(set(settings) - {"mixture"})):
        raise RecipeError(
            f"{file}, [data]: {others} cannot be combined with `mixture`; move these settings to the mixture file"
        )
    return settings, {tag: replace(entry, cache=_place(entry.cache, file, root)) for tag, entry in evaluation.items()}


def _mixture(settings: dict[str, Any], file: Path, root: str) -> Mixture:
    if "mixture" in settings:
        return load_mixture(absolute(str(settings["mixture"]), file.resolve().parent), root)
    return mixture_of(settings, file, root).mixture


def _place(cache: str, file: Path, root: str) -> str:
    if cache.startswith(ROOT):
        return find_cache(urls.join(urls.absolute(root), cache.removeprefix(ROOT)))
    return find_cache(absolute(cache, file.resolve().parent))


def find_cache(directory: str) -> str:
    """Return `directory` if it is a cache or a URL, otherwise the only finished cache in it. Raises UsageError."""
    if find_manifest(directory) is not None or not urls.is_local(directory):
        return directory
    entries = sorted(Path(directory).glob("tokenize-*")) if Path(directory).is_dir() else []
    finished = [str(entry) for entry in entries if find_manifest(str(entry)) is not None]
    if len(finished) == 1:
        return finished[0]
    if not finished:
        raise UsageError(f"{directory} holds no finished token cache; run its recipe first")
    names = ", ".join(os.path.basename(entry) for entry in finished)
    raise UsageError(f"{directory} holds {len(finished)} finished token caches; name one of them: {names}")


def _evaluations(mixture: Mixture, sets: Mapping[str, CacheSource]) -> dict[str, BatchesOf]:
    length, rows = mixture.lengths.at(0), mixture.batches.at(0)
    passes = {
        name: held_out_mixture(mixture, name, sequence_length=length, batch_size=rows)
        for name, component in mixture.components.items()
        if component.validation_tokens
    }
    for tag, source in sets.items():
        if tag in passes:
            raise UsageError(
                f"[data.evaluation.{tag}] has the same name as a component with validation_tokens; rename this table"
            )
        passes[tag] = one_pass(
            mixture, tag, Component(source, shuffle=Shuffle("none")), sequence_length=length, batch_size=rows
        )
    check_tags(passes)
    return {tag: partial(_read_once, one) for tag, one in passes.items()}


def _read_once(mixture: Mixture) -> Iterator[Any]:
    """Open a validation set and yield its batches."""
    with Loader(mixture, host=jax.process_index(), hosts=jax.process_count()) as loader:
        yield from loader.iterate()


def _token_bytes(cache: Cache) -> tuple[np.ndarray | None, tuple[str, ...]]:
    try:
        return token_byte_lengths(urls.read_bytes(cache.tokenizer_url), cache.tokenizer_url), ()
    except TokenizerError as error:
        return None, (f"no bits per byte: {error}",)


def _relative(url: str, directory: str) -> str:
    return urls.relative(url, directory) if urls.is_local(url) == urls.is_local(directory) else url
