"""From a recipe's raw tables to each stage's config class: strict, complete, and nothing ignored.

A stage's table may hold the fields of its config class and no other key; a source's own settings override those of
`[normalize]`. What comes out is what enters fingerprints, so every default is written out here. How much may be lost
before a run stops (`TOLERANCES`) decides about going on, not about any byte that is written: it stays outside, so
raising a limit goes on where the run had stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from datakit.consolidate.stage import Config as ConsolidateConfig
from datakit.dedup.minhash.signatures_stage import SignatureConfig
from datakit.dedup.stage import Config as DedupConfig
from datakit.download.stage import Config as DownloadConfig
from datakit.engine.task import TOLERANCES, without_tolerances
from datakit.errors import RecipeError
from datakit.normalize.stage import Config as NormalizeConfig
from datakit.recipe import Recipe, Source
from datakit.storage.fingerprint import spelled_out
from datakit.tokenize.config import Config as TokenizeConfig
from datakit.tokenize.train_stage import Config as TrainConfig
from datakit.toml_config import check_keys, convert, decoded, names_of

T = TypeVar("T")
TRAIN = "train"  # as the tokenizer's name: train one on the clean dataset
TRAIN_TABLE = "train"  # its settings: [tokenize.train]
ENABLED = "enabled"


@dataclass(frozen=True)
class Configuration:
    """Each stage's config; those of one source by its name; None for a stage that the recipe leaves out."""

    download: dict[str, DownloadConfig]
    normalize: dict[str, NormalizeConfig]
    signatures: SignatureConfig | None
    dedup: DedupConfig | None
    consolidate: ConsolidateConfig
    train: TrainConfig | None
    tokenize: TokenizeConfig | None


def configure(recipe: Recipe) -> Configuration:
    """Decode all of a recipe. Raises RecipeError with the place and the nearest valid name."""
    place = recipe.place
    dedup = _enabled(recipe.dedup, f"{place}, [dedup]")
    if dedup is not None:
        check_keys(dedup, [*names_of(SignatureConfig), *names_of(DedupConfig), ENABLED], f"{place}, [dedup]")
    tokenize = _enabled(recipe.tokenize, f"{place}, [tokenize]")
    return Configuration(
        download={source.name: _download(source) for source in recipe.sources},
        normalize={source.name: _normalize(recipe, source) for source in recipe.sources},
        signatures=None if dedup is None else _part(dedup, SignatureConfig, f"{place}, [dedup]"),
        dedup=None if dedup is None else _part(dedup, DedupConfig, f"{place}, [dedup]"),
        consolidate=decoded(recipe.consolidate, ConsolidateConfig, f"{place}, [consolidate]"),
        train=_train(tokenize, f"{place}, [tokenize.train]"),
        tokenize=None if tokenize is None else _tokenize(tokenize, f"{place}, [tokenize]"),
    )


def parameters(config: Any) -> dict[str, Any]:
    """A config as JSON has it, with every default written out: what enters a fingerprint, and the manifest."""
    return msgspec.json.decode(msgspec.json.encode(without_tolerances(config)))


def tolerances(config: Any) -> dict[str, Any]:
    """The rest of a config: what a step is told beside its parameters."""
    return {key: value for key, value in spelled_out(config).items() if key in TOLERANCES}


def _part(table: dict[str, Any], kind: type[T], place: str) -> T:
    names = names_of(kind)
    return convert({key: value for key, value in table.items() if key in names}, kind, place)


def _enabled(table: dict[str, Any] | None, place: str) -> dict[str, Any] | None:
    """The table without its switch, or None where the stage is left out."""
    if table is None:
        return None
    switch = table.get(ENABLED, True)
    if not isinstance(switch, bool):
        raise RecipeError(f"{place}: enabled is true or false")
    return _without(table, [ENABLED]) if switch else None


def _without(table: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}


def _download(source: Source) -> DownloadConfig:
    return DownloadConfig(include=source.include or (), exclude=source.exclude or ())


def _normalize(recipe: Recipe, source: Source) -> NormalizeConfig:
    check_keys(recipe.normalize, names_of(NormalizeConfig), f"{recipe.place}, [normalize]")
    return convert({**recipe.normalize, **source.reading()}, NormalizeConfig, f"{recipe.place}, source {source.name!r}")


def _tokenize(table: dict[str, Any], place: str) -> TokenizeConfig:
    plain = _without(table, [TRAIN_TABLE])
    check_keys(plain, [*names_of(TokenizeConfig), TRAIN_TABLE], place)
    return convert(plain, TokenizeConfig, place)


def _train(tokenize: dict[str, Any] | None, place: str) -> TrainConfig | None:
    if tokenize is None:
        return None
    table = tokenize.get(TRAIN_TABLE)
    if tokenize.get("tokenizer") != TRAIN:
        if table is not None:
            raise RecipeError(f'{place}: the tokenizer is not trained; write tokenizer = "train", or remove the table')
        return None
    if not isinstance(table, dict | None):
        raise RecipeError(f"{place} is a table of training settings")
    return decoded(table or {}, TrainConfig, place)
