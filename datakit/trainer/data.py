"""Opens the data that the `[data]` table of a run file defines: finds the caches, checks that all have the same
tokenizer, builds the mixture and the validation sets, and rounds up the default vocabulary size.

    [data.components.web]                   # other keys are as in a mixture file (loader/mixture/toml_file.py)
    cache = "data/demo"                     # a cache, or a dataset, which stands for its current cache
    source = "web"
    validation_tokens = 2_000_000           # number of tokens to hold out as a validation set named `web`

    [data.evaluation."exams/law"]           # a validation set in addition to the held-out documents
    cache = "data/exams"

    [data]                                  # alternatively, a mixture file and, at most, [data.evaluation.*] tables
    mixture = "mix.toml"

Paths are relative to the run file. At the start of a `cache` path, {root}/ stands for the command's --root. The root
also holds the sequence counts that `datakit mixture pack` writes for packed components. Which cache a dataset stands
for is decided once, when a run begins, and recorded in the run's directory (`leases/training_record.py`). The record
also names all other caches of the run, so that `datakit gc` keeps them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np

from datakit.cache.reader import Cache, open_cache
from datakit.errors import LoaderError, NotFoundError, TokenizerError, UsageError
from datakit.leases.training_record import read_record, write_record
from datakit.loader import Component, Loader, Mixture, Shuffle, held_out_mixture, one_pass
from datakit.loader.mixture.run_file import data_settings, mixture_of_run, place_of
from datakit.loader.sources.cache_source import CacheSource
from datakit.storage import urls
from datakit.storage.manifest import InputReference, manifest_url
from datakit.toml_config import decoded
from datakit.trainer.evaluation.evaluate import BatchesOf, EvaluationsAt, OtherLengthsAt
from datakit.trainer.evaluation.token_lengths import token_byte_lengths
from datakit.trainer.evaluation.totals import check_tags
from datakit.trainer.sizes.scaling import rounded_vocabulary


@dataclass(frozen=True)
class EvaluationTable:
    """A `[data.evaluation.<tag>]` table, which names a whole cache or one source in it."""

    cache: str
    source: str | None = None


class Resolved(msgspec.Struct, frozen=True):
    """The directory and the identity of the cache that a dataset stands for in a run."""

    cache: str
    identity: str


@dataclass(frozen=True)
class Opener:
    """Opens each cache once. `pinned` maps datasets to the caches to open for them, even if newer ones are current."""

    pinned: Mapping[str, Resolved]
    resolved: dict[str, Resolved] = field(default_factory=dict)
    opened: dict[str, Cache] = field(default_factory=dict)

    def __call__(self, url: str) -> Cache:
        place = urls.absolute(url)
        if place not in self.opened:
            pin = self.pinned.get(place)
            cache = self.opened[place] = open_cache(pin.cache if pin else place)
            identity = cache.manifest.identity
            if pin is not None and identity != pin.identity:
                raise NotFoundError(f"{pin.cache} has identity {identity}, but had {pin.identity} when the run began")
            if cache.directory != place:
                self.resolved[place] = Resolved(cache.directory, identity)
        return self.opened[place]


@dataclass(frozen=True)
class Data:
    """The data of a run."""

    mixture: Mixture
    evaluations: EvaluationsAt
    other_lengths: OtherLengthsAt
    token_bytes: np.ndarray | None  # the length of each token in bytes [V]; None: unknown
    vocabulary: int  # the tokenizer's vocabulary size, rounded up (`scaling.rounded_vocabulary`)
    caches: Mapping[str, Cache]  # keyed by directory
    notes: tuple[str, ...] = ()
    resolved: Mapping[str, Resolved] = field(default_factory=dict)  # by dataset

    def recorded(self) -> dict[str, Resolved]:
        """Return every cache of the run, by the dataset that stands for it or else by its own directory."""
        named = {place: Resolved(place, cache.manifest.identity) for place, cache in self.caches.items()}
        through = {found.cache for found in self.resolved.values()}
        return {place: cache for place, cache in named.items() if place not in through} | dict(self.resolved)

    def loader(self) -> Loader:
        """Return an open loader for this process's rows of the training batches; the caller must close it."""
        return Loader(self.mixture, host=jax.process_index(), hosts=jax.process_count())

    def inputs(self, directory: str) -> list[InputReference]:
        """Return references to the caches, for the manifest of the run in `directory`."""
        return [
            InputReference(
                "tokenize",
                _relative(manifest_url(cache), directory),
                opened.manifest.identity,
                opened.manifest.checksum,
                covered=False,
            )
            for cache, opened in sorted(self.caches.items())
        ]


def open_data(
    table: Mapping[str, Any], file: Path, root: str = "./data", pinned: Mapping[str, Resolved] | None = None
) -> Data:
    """Open the data that a `[data]` table defines. `pinned` maps datasets to the caches to use for them.

    Raises NotFoundError, RecipeError, UsageError, TokenizerError and LoaderError.
    """
    evaluation, settings = _evaluation_tables(table, file, root), data_settings(table, file, root)
    opener = Opener(pinned or {})
    mixture = mixture_of_run(settings, file, root, opener).mixture
    sets = {tag: CacheSource(opener(entry.cache), entry.source) for tag, entry in evaluation.items()}
    caches = {cache.directory: cache for cache in sorted(opener.opened.values(), key=lambda cache: cache.directory)}
    first = next(iter(caches.values()))
    for cache in caches.values():
        first.contract.require(cache.contract.tokenizer_sha256, first.directory)
    token_bytes, notes = _token_bytes(first)
    vocabulary = rounded_vocabulary(first.contract.vocabulary_size)
    check_tags(_evaluations(mixture, sets, 0))
    at, others = partial(_evaluations, mixture, sets), partial(_other_lengths, mixture, sets)
    return Data(mixture, at, others, token_bytes, vocabulary, caches, notes, opener.resolved)


def _evaluation_tables(table: Mapping[str, Any], file: Path, root: str) -> dict[str, EvaluationTable]:
    """Return the `[data.evaluation.<tag>]` tables by tag, with an absolute path or a URL for each `cache`."""
    place = f"{file}, [data.evaluation"
    found = {
        tag: decoded(entry, EvaluationTable, f"{place}.{tag}]", LoaderError)
        for tag, entry in table.get("evaluation", {}).items()
    }
    return {tag: replace(entry, cache=place_of(entry.cache, file, root)) for tag, entry in found.items()}


def _evaluations(mixture: Mixture, sets: Mapping[str, CacheSource], step: int) -> dict[str, BatchesOf]:
    """Return the validation sets by tag, in batches of the same shape as the last training batch before `step`."""
    return _sets_like(mixture, sets, max(step - 1, 0))


def _other_lengths(mixture: Mixture, sets: Mapping[str, CacheSource], step: int) -> dict[int, dict[str, BatchesOf]]:
    """Return the validation sets by sequence length and tag, for each length other than the one last trained on before
    `step`. The batches have the shape of the first training batch of that length.
    """
    current, first_steps = mixture.lengths.at(max(step - 1, 0)), dict[int, int]()
    for start, length in mixture.lengths.changes():
        first_steps.setdefault(length, start)
    return {
        length: _sets_like(mixture, sets, start) for length, start in sorted(first_steps.items()) if length != current
    }


def _sets_like(mixture: Mixture, sets: Mapping[str, CacheSource], batch: int) -> dict[str, BatchesOf]:
    """Return the validation sets by tag, in batches of the same shape as training batch `batch`."""
    length, rows = mixture.lengths.at(batch), mixture.batches.at(batch)
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


def record_caches(directory: str, resolved: Mapping[str, Resolved]) -> None:
    """Record in a run's directory which caches it reads, by dataset or by their own directories, with paths relative to
    the run's directory.
    """
    write_record(directory, {_as_written(place, directory): (_relative(found.cache, directory), found.identity)
                             for place, found in resolved.items()})  # fmt: skip


def recorded_caches(directory: str) -> dict[str, Resolved]:
    """Return the recorded caches, keyed by dataset; empty if none were recorded. Raises CorruptError."""
    record = read_record(directory)
    return {
        _from_relative(place, directory): Resolved(_from_relative(cache, directory), identity)
        for place, (cache, identity) in (record.caches if record else {}).items()
    }


def _as_written(url: str, directory: str) -> str:
    """Return the path from a run's directory to a place, without resolving links. If only one of the two is on a disk,
    there is no such path, so return `url`.
    """
    return urls.relative(url, directory) if urls.is_local(url) == urls.is_local(directory) else url


def _relative(url: str, directory: str) -> str:
    """Return the path from a run's directory to a cache, so that it also holds in a root that is reached by another
    path. On a disk, this is the path between the two places as written. However, the path between their real places is
    returned if the former does not lead from the directory's real place to the cache, or if it goes further up.
    """
    path = _as_written(url, directory)
    if not (urls.is_local(url) and urls.is_local(directory)):
        return path
    real, home = (os.path.realpath(urls.local_path(place)) for place in (url, directory))
    between = os.path.relpath(real, home)
    holds = os.path.realpath(urls.join(home, path)) == real
    return path if holds and path.count("..") <= between.count("..") else between


def _from_relative(url: str, directory: str) -> str:
    return urls.join(directory, url) if urls.is_local(url) else url
