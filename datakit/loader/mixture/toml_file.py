"""Reads a mixture and the number of steps from a TOML file: defines the file's keys and resolves relative cache paths.

    seed = 0
    sequence_length = [[0, 4096], [95_000, 32_768]]     # pairs [first step, length], or one length for the whole run
    batch_size = 512
    steps = 100_000                                     # number of steps in the run, for the preview

    [components.web]
    cache = "data/demo"                                 # a path relative to this file's directory, or a URL
    source = "web"                                      # one source of the cache; default: all sources
    validation_tokens = 2_000_000

    [components.code]
    cache = "data/demo/tokenize-0123456789ab"
    source = "code"
    packing = "split"                                   # or { too_long = "drop", max_documents = 8 }
    max_epochs = 4

    [[stages]]
    weights = { web = 0.9, code = 0.1 }

    [[stages]]
    start_step = 90_000                                 # or start_slot
    weights = { web = 0.5, code = 0.5 }

    [[exclusions]]
    start_step = 80_000                                 # these documents do not count toward the loss from here on
    documents = ["5f0cd7a1b2c3d4e5f60718293a4b5c6d"]

The command line and training scripts read the same file. The remaining settings have the same names as in `Mixture`:
`block`, `stop`, `memory_bytes`, `simulate`, `final_batch`, `pad_id`. A component's `shuffle` is either a word, such as
"none", or a table, such as `{ block_tokens = 4_194_304 }`. A dataset's directory stands for the dataset's current
cache. A cache used by several components is opened only once. Loading takes one read per cache and, with
`packing_root`, two more per packed component and sequence length.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from datakit.cache.reader import Cache, open_cache
from datakit.errors import LoaderError, NotFoundError, UsageError
from datakit.loader.mixture.config import Component, Mixture, Shuffle, SimulatedEpochs, Stage, unknown_component
from datakit.loader.mixture.packing import Packing
from datakit.loader.mixture.packing_counts import with_packing_counts
from datakit.loader.mixture.schedule import Schedule
from datakit.loader.sources.cache_source import CacheSource
from datakit.loader.sources.exclusions import Exclusion
from datakit.toml_config import convert, decoded, mistakes, read_toml, refuse


@dataclass(frozen=True)
class MixtureFile:
    """The contents of a mixture file. `steps` is the number of steps in the run, or None if the file has no `steps`.
    `is_run` is True if the file is a run file (see `run_file.py`).
    """

    path: str
    mixture: Mixture
    steps: int | None
    is_run: bool = False


@dataclass(frozen=True)
class ComponentTable:
    """The table `[components.<name>]`: where a component's tokens are and how to read them."""

    cache: str
    source: str | None = None
    packing: str | dict[str, Any] | None = None
    shuffle: str | dict[str, Any] = "block"
    validation_tokens: int = 0
    max_epochs: int | None = None


@dataclass(frozen=True)
class MixtureTable:
    """The top level of the file. None stands for the default value in `Mixture`."""

    components: dict[str, Any]
    stages: list[Any]
    steps: int | None = None
    seed: int | None = None
    sequence_length: int | list[tuple[int, int]] | None = None
    batch_size: int | list[tuple[int, int]] | None = None
    block: int | None = None
    stop: str | None = None
    memory_bytes: int | None = None
    simulate: dict[str, Any] | None = None
    final_batch: str | None = None
    pad_id: int | None = None
    exclusions: list[Any] | None = None


def load_mixture(
    path: str | os.PathLike[str], packing_root: str | None = None, opened: Callable[[str], Cache] = open_cache
) -> Mixture:
    """Load the mixture from a file. `packing_root` is the root in which `datakit mixture pack` stored its counts;
    `opened` is the function that opens a cache. Raises LoaderError if the file is invalid, or if counts are missing for
    a component with too many blocks to pack at the start of a run. Raises CorruptError if counts are damaged.
    """
    return load_mixture_file(path, packing_root, opened).mixture


def load_mixture_file(
    path: str | os.PathLike[str], packing_root: str | None = None, opened: Callable[[str], Cache] = open_cache
) -> MixtureFile:
    """Load the mixture and the number of steps from a file. Raises the same errors as `load_mixture`."""
    file = Path(path).expanduser()
    return mixture_of(read_toml(file, "give a mixture file (TOML)", LoaderError), file, packing_root, opened)


def mixture_of(
    document: Mapping[str, Any],
    file: Path,
    packing_root: str | None = None,
    opened: Callable[[str], Cache] = open_cache,
) -> MixtureFile:
    """Make a MixtureFile from a decoded TOML document. Paths are relative to `file`'s directory; errors name `file`."""
    refuse(_mistakes(document, file), LoaderError)
    table = convert(document, MixtureTable, str(file), LoaderError)
    if table.steps is not None and table.steps < 1:
        raise LoaderError(f"{file}: steps is {table.steps}; it must be at least 1")
    once, entries = cache(opened), table.components.items()
    components = {name: _component(entry, f"{file}, component {name!r}", file, once) for name, entry in entries}
    try:
        mixture = Mixture(components, _stages(table.stages, str(file)), **_settings(table, str(file)))
        if packing_root is not None:
            mixture = with_packing_counts(mixture, packing_root)
    except LoaderError as error:
        raise error if str(error).startswith(str(file)) else LoaderError(f"{file}: {error}") from error
    return MixtureFile(str(file), mixture, table.steps)


def _mistakes(document: Mapping[str, Any], file: Path) -> list[str]:
    """Return a message for each mistake that can be found without opening a cache."""
    found = mistakes(document, MixtureTable, str(file), LoaderError)
    components, stages = document.get("components"), document.get("stages")
    names: Mapping[str, Any] = components if isinstance(components, Mapping) else {}
    listed: list[Any] = stages if isinstance(stages, list) else []
    for name, entry in names.items():
        found += mistakes(entry, ComponentTable, f"{file}, component {name!r}", LoaderError)
    for number, stage in enumerate(listed):
        found += mistakes(stage, Stage, f"{file}, stage {number}", LoaderError)
        weights = stage.get("weights") if isinstance(stage, Mapping) else None
        if names and isinstance(weights, Mapping):
            found += [f"{file}: {unknown_component(number, one, names)}" for one in weights if one not in names]
    return found


def _component(value: Any, place: str, file: Path, opened: Callable[[str], Cache]) -> Component:
    table = decoded(value, ComponentTable, place, LoaderError)
    try:
        source = CacheSource(opened(absolute(table.cache, file)), table.source)
    except (NotFoundError, UsageError, LoaderError) as error:
        raise LoaderError(f"{place}: {error}") from error
    return Component(
        source,
        packing=_choice(table.packing, Packing, "too_long", f"{place}, packing"),
        shuffle=_choice(table.shuffle, Shuffle, "kind", f"{place}, shuffle") or Shuffle(),
        validation_tokens=table.validation_tokens,
        max_epochs=table.max_epochs,
    )


def _choice(value: str | dict[str, Any] | None, kind: Any, word: str, place: str) -> Any:
    """Decode a table as an instance of `kind`. A string is shorthand for a table whose only key is `word`."""
    if value is None:
        return None
    return decoded({word: value} if isinstance(value, str) else value, kind, place, LoaderError)


def _stages(tables: list[Any], place: str) -> list[Stage]:
    return [decoded(table, Stage, f"{place}, stage {number}", LoaderError) for number, table in enumerate(tables)]


def _settings(table: MixtureTable, place: str) -> dict[str, Any]:
    given = {name: value for name, value in vars(table).items() if value is not None}
    for name in ("components", "stages", "steps"):
        given.pop(name, None)
    for name in ("sequence_length", "batch_size"):
        if isinstance(given.get(name), list):
            given[name] = Schedule(tuple(given[name]))
    if table.exclusions is not None:
        given["exclusions"] = decoded_exclusions(table.exclusions, place)
    if table.simulate is not None:
        given["simulate"] = decoded(table.simulate, SimulatedEpochs, f"{place}, simulate", LoaderError)
    return given


def decoded_exclusions(tables: list[Any], place: str) -> tuple[Exclusion, ...]:
    """Decode the tables `[[exclusions]]`. Raises LoaderError."""
    listed = enumerate(tables)
    return tuple(decoded(table, Exclusion, f"{place}, exclusion {number}", LoaderError) for number, table in listed)


def absolute(url: str, file: Path) -> str:
    """Return the absolute form of a path that is relative to the directory of `file`. URLs are returned unchanged."""
    return url if "://" in url else os.path.normpath(file.resolve().parent / Path(url).expanduser())
