"""Finds the tables of a recipe that configure stages, and the class into which each is decoded. A stage's table may
hold only the fields of the stage's config class, apart from keys that this module reads itself (such as `enabled`). A
source's own settings override those in `[normalize]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datakit.annotate import stage as annotate
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.annotate.tables import TABLES, Chosen, chosen_tables
from datakit.annotate.user.config import UserConfig
from datakit.conditions.config import Rule
from datakit.consolidate import stage as consolidate
from datakit.dedup import stage as dedup
from datakit.dedup.minhash import signatures_stage as signatures
from datakit.download import stage as download
from datakit.engine.disk_limits import DiskLimits
from datakit.errors import RecipeError
from datakit.normalize import stage as normalize
from datakit.normalize.settings.splits import patterns_of, split_patterns
from datakit.passages import stage as passages
from datakit.passages.config import SearchConfig
from datakit.recipe import MODEL_SERVER, USER, Recipe, Source
from datakit.rules import stage as rules
from datakit.select import stage as select
from datakit.select.bucket_config import Bucket
from datakit.select.edit_config import EditConfig
from datakit.select.final.plan import RULES
from datakit.select.plan_edits import EDITS
from datakit.storage.selection.buckets import FOLDER as BUCKETS
from datakit.tokenize import stage as tokenize
from datakit.tokenize import train_stage
from datakit.toml_config import names_of

TRAIN = "train"  # value of `tokenizer` that requests training a tokenizer on the documents that stay
TRAIN_TABLE = "train"  # the subtable [tokenize.train], which holds the settings for training
LIMITS = "limits"  # the table of limits on disk use, which belongs to no stage
ENABLED = "enabled"
WRITE = "write"  # `false` skips the consolidate step; no other step reads its output
NAMED = {USER: UserConfig, MODEL_SERVER: ModelServerConfig}  # the tables of annotators that the recipe names
READING_KEYS = (
    "format", "text", "id", "where", "types", "sample", "sample_seed", "limit", "transform", "transform_version",
    "quoting", "keep", "drop", "rename", "conflicts", "extract", "extract_seconds",
)  # fmt: skip
SPLITS = "splits"


@dataclass(frozen=True)
class Table:
    """The settings of one stage as written in the recipe, and the class into which they are decoded."""

    stage: str
    source: str | None
    values: Any
    kind: type
    place: str
    other_keys: tuple[str, ...] = ()  # valid keys that are not in `values`, because this module reads them itself
    subtables: tuple[Table, ...] = ()  # those of [annotate] (in the order of TABLES), [passages] or [select.edits]
    rules: tuple[Table, ...] = ()  # tables in arrays, in order: [[rules]], [[select.rules]], [[select.buckets]]
    annotator: str = ""  # the built-in annotator that a subtable of [annotate] chooses
    named: bool = False  # True if the recipe chooses the name of the annotator's table of attributes

    @property
    def subtable_name(self) -> str:
        """The last part of a subtable's name, which is that of an annotator, of a search or of an edit."""
        return self.place.rpartition(".")[2].removesuffix("]")


def tables_of(recipe: Recipe) -> Iterator[Table]:
    """Yield the tables of the stages that a recipe enables. Raises RecipeError for a mistake in a key that this module
    reads itself.
    """
    annotators = _enabled(recipe.annotate, f"{recipe.place}, [annotate]")
    deduplicate = _enabled(recipe.dedup, f"{recipe.place}, [dedup]")
    for source in recipe.sources:
        yield from _source_tables(recipe, source, annotators, deduplicate)
    if recipe.rules:
        yield _rules_table(recipe.rules, recipe.place)
    if deduplicate is not None:
        yield Table(dedup.NAME, None, deduplicate, dedup.Config, f"{recipe.place}, [dedup]", (ENABLED,))
    if (searches := _enabled(recipe.passages, f"{recipe.place}, [{passages.NAME}]")) is not None:
        yield _passages_table(searches, recipe.place)
    yield _select_table(recipe.select, recipe.place)
    place = f"{recipe.place}, [consolidate]"
    if (written := _enabled(recipe.consolidate, place, WRITE)) is not None:
        yield Table(consolidate.NAME, None, written, consolidate.Config, place, (WRITE,))
    yield from _tokenize_tables(_enabled(recipe.tokenize, f"{recipe.place}, [tokenize]"), recipe.place)


def written_tables(document: Mapping[str, Any], place: str) -> Iterator[Table]:
    """Yield the stage tables of a recipe as they are written, but without the keys that this module reads itself."""
    kinds = (
        (normalize.NAME, normalize.Config, ()), (dedup.NAME, dedup.Config, (ENABLED,)),
        (consolidate.NAME, consolidate.Config, (WRITE,)),
        (tokenize.NAME, tokenize.Config, (ENABLED, TRAIN_TABLE)),
    )  # fmt: skip
    if isinstance(limits := document.get(LIMITS), dict):
        yield limits_table(limits, place)
    if isinstance(values := document.get(annotate.NAME), dict):
        yield _annotate_table(None, values, place)
    if isinstance(values := document.get(rules.NAME), list):
        yield _rules_table(values, place)
    if isinstance(values := document.get(passages.NAME), dict):
        yield _passages_table(values, place)
    if isinstance(values := document.get(select.NAME), dict):
        yield _select_table(values, place)
    for name, kind, own in kinds:
        if isinstance(values := document.get(name), dict):
            yield Table(name, None, without(values, own), kind, f"{place}, [{name}]", own)
            if TRAIN_TABLE in own and isinstance(training := values.get(TRAIN_TABLE), dict):
                yield Table(train_stage.NAME, None, training, train_stage.Config, f"{place}, [{name}.{TRAIN_TABLE}]")


def limits_table(values: Any, place: str) -> Table:
    return Table(LIMITS, None, values, DiskLimits, f"{place}, [{LIMITS}]")


def _source_tables(
    recipe: Recipe, source: Source, annotators: dict[str, Any] | None, deduplicate: dict[str, Any] | None
) -> Iterator[Table]:
    splits = _splits(recipe, source)
    selection = {"include": source.include or patterns_of(splits), "exclude": source.exclude or ()}
    yield Table(download.NAME, source.name, selection, download.Config, f"{recipe.place}, source {source.name!r}")
    own = {key: value for key in READING_KEYS if (value := getattr(source, key)) is not None}
    own |= {SPLITS: splits} if splits else {}
    place = f"{recipe.place}, [normalize] of source {source.name!r}"
    yield Table(normalize.NAME, source.name, {**recipe.normalize, **own}, normalize.Config, place)
    if annotators is not None:
        yield _annotate_table(source.name, annotators, recipe.place)
    if deduplicate is not None:
        kind, names = signatures.SignatureConfig, names_of(signatures.SignatureConfig)
        values = {key: value for key, value in deduplicate.items() if key in names}
        yield Table(signatures.NAME, source.name, values, kind, f"{recipe.place}, [dedup]")


def _splits(recipe: Recipe, source: Source) -> dict[str, tuple[str, ...]]:
    """Return the patterns of the files of each split of a source. Raises RecipeError."""
    place = f"{recipe.place}, source {source.name!r}"
    if SPLITS in recipe.normalize:
        raise RecipeError(f"{recipe.place}, [normalize]: {SPLITS} belongs into the table of a source")
    if source.splits and source.include:
        raise RecipeError(
            f"{place}: include and {SPLITS} both select files; give the patterns of each split instead: "
            f'{SPLITS} = {{ train = ["train/*.parquet"] }}'
        )
    try:
        return split_patterns(source.splits or {})
    except RecipeError as error:
        raise RecipeError(f"{place}: {error}") from error


def _annotate_table(source: str | None, values: dict[str, Any], place: str) -> Table:
    """Return the table [annotate] with a subtable for each annotator that the recipe chooses."""
    place = f"{place}, [{annotate.NAME}"
    annotators = tuple(_built_in_table(chosen, place) for chosen in chosen_tables(values))
    own = without(values, (*TABLES, ENABLED, *NAMED))
    for name, kind in NAMED.items():
        annotators += tuple(_named_tables(values.get(name, {}), f"{place}.{name}", kind))
    return Table(annotate.NAME, source, own, annotate.Config, f"{place}]", (ENABLED, *NAMED, *TABLES), annotators)


def _built_in_table(chosen: Chosen, place: str) -> Table:
    place = f"{place}.{chosen.annotator}" + (f".{chosen.name}]" if chosen.named else "]")
    kind = TABLES[chosen.annotator].kind
    return Table(annotate.NAME, None, chosen.values, kind, place, annotator=chosen.annotator, named=chosen.named)


def _named_tables(tables: Any, place: str, kind: type) -> Iterator[Table]:
    if not isinstance(tables, Mapping):
        yield Table(annotate.NAME, None, tables, kind, f"{place}]")
        return
    for name, values in tables.items():
        yield Table(annotate.NAME, None, values, kind, f"{place}.{name}]", named=True)


def _rules_table(values: Sequence[Any], place: str) -> Table:
    """Return the rules of a recipe as one table, with a table for each rule."""
    found = tuple(
        Table(rules.NAME, None, value, Rule, f"{place}, rule {_rule_name(value, number)}")
        for number, value in enumerate(values, start=1)
    )
    return Table(rules.NAME, None, {rules.NAME: list(values)}, rules.Config, f"{place}, [[{rules.NAME}]]", rules=found)


def _rule_name(value: Any, number: int) -> str:
    return repr(value.get("name", number)) if isinstance(value, Mapping) else str(number)


def _passages_table(values: Mapping[str, Any], place: str) -> Table:
    """Return the table [passages] with a subtable for each search, in alphabetical order."""
    place = f"{place}, [{passages.NAME}"
    searches = tuple(
        Table(passages.NAME, None, found, SearchConfig, f"{place}.{name}]")
        for name, found in sorted(values.items())
        if name != ENABLED
    )
    return Table(passages.NAME, None, {}, passages.Config, f"{place}]", (ENABLED,), searches)


def _select_table(values: Any, place: str) -> Table:
    """Return the table [select] with a subtable for each edit, in alphabetical order."""
    place = f"{place}, [{select.NAME}"
    edits = values.get(EDITS, {}) if isinstance(values, Mapping) else {}
    if not isinstance(edits, Mapping):
        raise RecipeError(f"{place}.{EDITS}] must hold one table for each edit, such as [{select.NAME}.{EDITS}.mail]")
    subtables = tuple(
        Table(EDITS, None, found, EditConfig, f"{place}.{EDITS}.{name}]") for name, found in sorted(edits.items())
    )
    if not isinstance(values, Mapping):
        return Table(select.NAME, None, values, select.Config, f"{place}]", (EDITS,), subtables)
    own, arrays = without(values, (EDITS,)), list[Table]()
    for name, kind, what in ((RULES, Rule, "rule"), (BUCKETS, Bucket, "bucket")):
        if isinstance(listed := values.get(name), Sequence):
            arrays += (
                Table(select.NAME, None, one, kind, f"{place}], {what} {_rule_name(one, number)}")
                for number, one in enumerate(listed, start=1)
            )
    return Table(select.NAME, None, own, select.Config, f"{place}]", (EDITS,), subtables, tuple(arrays))


def _tokenize_tables(table: dict[str, Any] | None, place: str) -> Iterator[Table]:
    if table is None:
        return
    training = table.get(TRAIN_TABLE)
    if table.get("tokenizer") == TRAIN:
        if not isinstance(training, dict | None):
            raise RecipeError(f"{place}: [tokenize.train] must be a table of training settings")
        yield Table(train_stage.NAME, None, training or {}, train_stage.Config, f"{place}, [tokenize.train]")
    elif training is not None:
        raise RecipeError(
            f'{place}, [tokenize.train]: the recipe trains no tokenizer; set tokenizer = "train" or remove the table'
        )
    values, place = without(table, [TRAIN_TABLE]), f"{place}, [tokenize]"
    yield Table(tokenize.NAME, None, values, tokenize.Config, place, (ENABLED, TRAIN_TABLE))


def _enabled(table: dict[str, Any] | None, place: str, key: str = ENABLED) -> dict[str, Any] | None:
    """Return the table without the key that disables its stage, or None if the stage is disabled or has no table."""
    if table is None:
        return None
    switch = table.get(key, True)
    if not isinstance(switch, bool):
        raise RecipeError(f"{place}: {key} must be true or false")
    return without(table, [key]) if switch else None


def without(table: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}
