"""Decodes a recipe into checked settings for each stage, and separates those that enter fingerprints from those that do
not. A stage's table may hold only the fields of the stage's config class, apart from keys that this module reads itself
(such as `enabled`). A source's own settings override those in `[normalize]`. Every default is filled in, so two recipes
with equal settings share their steps. Limits on quarantined and removed records (`TOLERANCES`) never change a byte of
output. They are kept out of fingerprints, so that a stopped run can be resumed with a higher limit.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from datakit.annotate import stage as annotate
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.annotate.tables import TABLES
from datakit.annotate.user.config import TABLE_NAME, UserConfig, separated
from datakit.conditions.config import DOCUMENT, EDITED, SOURCE, Rule
from datakit.consolidate import stage as consolidate
from datakit.dedup import stage as dedup
from datakit.dedup.minhash import signatures_stage as signatures
from datakit.download import stage as download
from datakit.engine.disk_limits import DiskLimits
from datakit.engine.task import TOLERANCES
from datakit.engine.user_modules import CODE_FOLDER
from datakit.errors import NotFoundError, RecipeError, TokenizerError
from datakit.normalize import stage as normalize
from datakit.passages import stage as passages
from datakit.passages.config import SearchConfig
from datakit.pipeline.recipe_checks.edit_tables import edit_mistakes
from datakit.pipeline.recipe_checks.final_tables import final_mistakes
from datakit.pipeline.recipe_checks.passage_tables import passage_mistakes
from datakit.pipeline.recipe_checks.rule_tables import prefer_mistakes, rule_mistakes
from datakit.recipe import MODEL_SERVER, USER, Recipe, Source
from datakit.rules import stage as rules
from datakit.select import stage as select
from datakit.select.bucket_config import Bucket
from datakit.select.edit_config import EditConfig
from datakit.select.final.equal_texts import EQUAL
from datakit.select.final.plan import RULES
from datakit.select.plan_edits import EDITS
from datakit.storage import urls
from datakit.storage.selection.buckets import FOLDER as BUCKETS
from datakit.tokenize import contract_stage, train_stage
from datakit.tokenize import stage as tokenize
from datakit.tokenize.encoders.custom import is_custom
from datakit.toml_config import convert, mistakes, names_of, refuse, unknown_keys

TRAIN = "train"  # value of `tokenizer` that requests training a tokenizer on the documents that stay
CHOICES = """tokenize.tokenizer can be
  "tokenizer.json"             a file of the tokenizers library; also a URL, as in
                               "hf://openai-community/gpt2/tokenizer.json"
  "openai-community/gpt2"      a model on the Hugging Face Hub (needs a network);
                               "NAME@REVISION" chooses a revision of it
  "train"                      a tokenizer trained on this dataset
  "bytes"                      one token per byte
  "package.module:function"    a tokenizer of your own"""
TRAIN_TABLE = "train"  # the subtable [tokenize.train], which holds the settings for training
LIMITS = "limits"  # the table of limits on disk use, which belongs to no stage
PATH = "tokenizer_path"  # the operation parameter that holds the path of a tokenizer file
CHECKS = (  # made once all tables are valid
    rule_mistakes, prefer_mistakes, passage_mistakes, edit_mistakes, final_mistakes,
)  # fmt: skip
ENABLED = "enabled"
WRITE = "write"  # `false` skips the consolidate step; no other step reads its output
MOVED = {(consolidate.NAME, "drop"): f"[{select.NAME}]"}  # keys that earlier versions read in another table
NAMED = {USER: UserConfig, MODEL_SERVER: ModelServerConfig}  # the tables of annotators that the recipe names
READING_KEYS = ("format", "text", "id", "where", "types", "sample", "transform", "transform_version", "quoting")


@dataclass(frozen=True)
class Settings:
    """A stage's settings as JSON values. `content` enters the fingerprint and the manifest; `operations` does not."""

    content: dict[str, Any]
    operations: dict[str, Any]


# Stage -> source (None: the whole dataset) -> settings. Sources are in recipe order. Disabled stages are absent.
Configuration = dict[str, dict[str | None, Settings]]


@dataclass(frozen=True)
class _Table:
    """The settings of one stage as written in the recipe, and the class into which they are decoded."""

    stage: str
    source: str | None
    values: Any
    kind: type
    place: str
    other_keys: tuple[str, ...] = ()  # valid keys that are not in `values`, because this module reads them itself
    subtables: tuple[_Table, ...] = ()  # those of [annotate] (in the order of TABLES), [passages] or [select.edits]
    rules: tuple[_Table, ...] = ()  # tables in arrays, in order: [[rules]], [[select.rules]], [[select.buckets]]


def configure(recipe: Recipe) -> Configuration:
    """Return the settings of all stages of a recipe, decoded from its tables. Hashes the recipe's tokenizer file.
    Raises RecipeError or TokenizerError.
    """
    try:
        tables = list(_tables(recipe))
    except RecipeError as error:
        refuse([str(error), *table_mistakes(vars(recipe), recipe.place)])
        raise
    found: dict[str, str] = {}  # a mistake in [normalize] is found for every source, but reported once
    for table in (*tables, _limits_table(recipe.limits, recipe.place)):
        for message in _mistakes(table):
            found.setdefault(message.replace(f" of source {table.source!r}", ""), message)
    refuse(found.values() or [message for check in CHECKS for message in check(recipe)])
    configs = [convert(table.values, table.kind, table.place) for table in tables]
    configuration: Configuration = {}
    for table, config in zip(tables, configs, strict=True):
        configuration.setdefault(table.stage, {})[table.source] = _settings(table, config, recipe.folder)
    if tokenize.NAME in configuration:
        configuration[contract_stage.NAME] = {None: _contract_settings(configuration[tokenize.NAME][None])}
    if passages.NAME in configuration:  # it searches the documents that select will keep
        drop = configuration[select.NAME][None].content[passages.DROP]
        configuration[passages.NAME][None].content[passages.DROP] = drop
    return configuration


def disk_limits(recipe: Recipe) -> DiskLimits:
    """Return the limits on disk use, which apply to all stages."""
    return convert(recipe.limits, DiskLimits, f"{recipe.place}, [{LIMITS}]")


def _limits_table(values: Any, place: str) -> _Table:
    return _Table(LIMITS, None, values, DiskLimits, f"{place}, [{LIMITS}]")


def table_mistakes(document: Mapping[str, Any], place: str) -> list[str]:
    """Return a message for each mistake in the stage tables of a recipe. This function is called only if other mistakes
    have already been found in the recipe.
    """
    tables = list(_present(document, place))
    return [text for one in tables for text in _mistakes(one)]


def _mistakes(table: _Table) -> list[str]:
    """Return a message for each mistake in a table. The message for a key that has moved names its new table."""
    if not isinstance(table.values, Mapping):
        return [f"{table.place} must be a table"]
    if table.rules and (found := [message for rule in table.rules for message in _mistakes(rule)]):
        return found
    moved = {key: home for (stage, key), home in MOVED.items() if stage == table.stage and key in table.values}
    found = [f"{table.place}: the key {key!r} is now in the table {home}; move it there" for key, home in moved.items()]
    found += mistakes(_without(table.values, moved), table.kind, table.place, other_keys=table.other_keys)
    found += [message for one in table.subtables for message in _subtable_mistakes(one)]
    named = Counter(_subtable_name(one) for one in table.subtables if one.kind in NAMED.values())
    return found + [
        f"{table.place}: two annotators have the name {name!r}" for name, count in named.items() if count > 1
    ]


def _subtable_mistakes(table: _Table) -> list[str]:
    """Return a message for each mistake in an annotator's table, and for each unknown key in its tables of files."""
    found, about = _mistakes(table), TABLES.get(_subtable_name(table))
    if about is None:
        return found + _name_mistakes(table)
    files = table.values.get(about.files) if about.files and isinstance(table.values, Mapping) else None
    for name, values in files.items() if isinstance(files, Mapping) else ():
        if isinstance(values, Mapping):
            place = f"{table.place.removesuffix(']')}.{about.files}.{name}]"
            found += unknown_keys(values, names_of(about.file_kind), place)
    return found + _name_mistakes(table)


def _name_mistakes(table: _Table) -> list[str]:
    """Return a message if an annotator that the recipe names has a name that a table of attributes cannot have."""
    name = _subtable_name(table)
    whole = table.place.endswith(tuple(f"[{annotate.NAME}.{one}.{name}]" for one in NAMED))  # a name may contain dots
    taken = (*TABLES, DOCUMENT, SOURCE, EDITED)
    if table.kind not in NAMED.values() or (whole and TABLE_NAME.fullmatch(name) and name not in taken):
        return []
    reason = "a built-in annotator has this name" if name in TABLES else "use letters a-z, digits and '_'"
    reason = "expressions of rules give this name another meaning" if name in taken[len(TABLES) :] else reason
    return [f"{table.place}: {name!r} cannot be the name of a table of attributes: {reason}"]


def _present(document: Mapping[str, Any], place: str) -> Iterator[_Table]:
    """Yield the stage tables of a recipe as they are written, but without the keys that this module reads itself."""
    kinds = (
        (normalize.NAME, normalize.Config, ()), (dedup.NAME, dedup.Config, (ENABLED,)),
        (consolidate.NAME, consolidate.Config, (WRITE,)),
        (tokenize.NAME, tokenize.Config, (ENABLED, TRAIN_TABLE)),
    )  # fmt: skip
    if isinstance(limits := document.get(LIMITS), dict):
        yield _limits_table(limits, place)
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
            yield _Table(name, None, _without(values, own), kind, f"{place}, [{name}]", own)
            if TRAIN_TABLE in own and isinstance(training := values.get(TRAIN_TABLE), dict):
                yield _Table(train_stage.NAME, None, training, train_stage.Config, f"{place}, [{name}.{TRAIN_TABLE}]")


def _tables(recipe: Recipe) -> Iterator[_Table]:
    annotators = _enabled(recipe.annotate, f"{recipe.place}, [annotate]")
    deduplicate = _enabled(recipe.dedup, f"{recipe.place}, [dedup]")
    for source in recipe.sources:
        yield from _source_tables(recipe, source, annotators, deduplicate)
    if recipe.rules:
        yield _rules_table(recipe.rules, recipe.place)
    if deduplicate is not None:
        yield _Table(dedup.NAME, None, deduplicate, dedup.Config, f"{recipe.place}, [dedup]", (ENABLED,))
    if (searches := _enabled(recipe.passages, f"{recipe.place}, [{passages.NAME}]")) is not None:
        yield _passages_table(searches, recipe.place)
    yield _select_table(recipe.select, recipe.place)
    place = f"{recipe.place}, [consolidate]"
    if (written := _enabled(recipe.consolidate, place, WRITE)) is not None:
        yield _Table(consolidate.NAME, None, written, consolidate.Config, place, (WRITE,))
    yield from _tokenize_tables(_enabled(recipe.tokenize, f"{recipe.place}, [tokenize]"), recipe.place)


def _source_tables(
    recipe: Recipe, source: Source, annotators: dict[str, Any] | None, deduplicate: dict[str, Any] | None
) -> Iterator[_Table]:
    selection = {"include": source.include or (), "exclude": source.exclude or ()}
    yield _Table(download.NAME, source.name, selection, download.Config, f"{recipe.place}, source {source.name!r}")
    own = {key: value for key in READING_KEYS if (value := getattr(source, key)) is not None}
    place = f"{recipe.place}, [normalize] of source {source.name!r}"
    yield _Table(normalize.NAME, source.name, {**recipe.normalize, **own}, normalize.Config, place)
    if annotators is not None:
        yield _annotate_table(source.name, annotators, recipe.place)
    if deduplicate is not None:
        kind, names = signatures.SignatureConfig, names_of(signatures.SignatureConfig)
        values = {key: value for key, value in deduplicate.items() if key in names}
        yield _Table(signatures.NAME, source.name, values, kind, f"{recipe.place}, [dedup]")


def _annotate_table(source: str | None, values: dict[str, Any], place: str) -> _Table:
    """Return the table [annotate] with a subtable for each annotator that the recipe chooses."""
    place = f"{place}, [{annotate.NAME}"
    chosen = {name: values[name] for name in TABLES if name in values}
    annotators = tuple(
        _Table(annotate.NAME, None, found, TABLES[name].kind, f"{place}.{name}]") for name, found in chosen.items()
    )
    own = _without(values, (*chosen, ENABLED, *NAMED))
    for name, kind in NAMED.items():
        annotators += tuple(_named_tables(values.get(name, {}), f"{place}.{name}", kind))
    return _Table(annotate.NAME, source, own, annotate.Config, f"{place}]", (ENABLED, *NAMED, *TABLES), annotators)


def _named_tables(tables: Any, place: str, kind: type) -> Iterator[_Table]:
    if not isinstance(tables, Mapping):
        yield _Table(annotate.NAME, None, tables, kind, f"{place}]")
        return
    for name, values in tables.items():
        yield _Table(annotate.NAME, None, values, kind, f"{place}.{name}]")


def _rules_table(values: Sequence[Any], place: str) -> _Table:
    """Return the rules of a recipe as one table, with a table for each rule."""
    found = tuple(
        _Table(rules.NAME, None, value, Rule, f"{place}, rule {_rule_name(value, number)}")
        for number, value in enumerate(values, start=1)
    )
    return _Table(rules.NAME, None, {rules.NAME: list(values)}, rules.Config, f"{place}, [[{rules.NAME}]]", rules=found)


def _rule_name(value: Any, number: int) -> str:
    return repr(value.get("name", number)) if isinstance(value, Mapping) else str(number)


def _passages_table(values: Mapping[str, Any], place: str) -> _Table:
    """Return the table [passages] with a subtable for each search, in alphabetical order."""
    place = f"{place}, [{passages.NAME}"
    searches = tuple(
        _Table(passages.NAME, None, found, SearchConfig, f"{place}.{name}]")
        for name, found in sorted(values.items())
        if name != ENABLED
    )
    return _Table(passages.NAME, None, {}, passages.Config, f"{place}]", (ENABLED,), searches)


def _select_table(values: Any, place: str) -> _Table:
    """Return the table [select] with a subtable for each edit, in alphabetical order."""
    place = f"{place}, [{select.NAME}"
    edits = values.get(EDITS, {}) if isinstance(values, Mapping) else {}
    if not isinstance(edits, Mapping):
        raise RecipeError(f"{place}.{EDITS}] must hold one table for each edit, such as [{select.NAME}.{EDITS}.mail]")
    subtables = tuple(
        _Table(EDITS, None, found, EditConfig, f"{place}.{EDITS}.{name}]") for name, found in sorted(edits.items())
    )
    if not isinstance(values, Mapping):
        return _Table(select.NAME, None, values, select.Config, f"{place}]", (EDITS,), subtables)
    own, arrays = _without(values, (EDITS,)), list[_Table]()
    for name, kind, what in ((RULES, Rule, "rule"), (BUCKETS, Bucket, "bucket")):
        if isinstance(listed := values.get(name), Sequence):
            arrays += (
                _Table(select.NAME, None, one, kind, f"{place}], {what} {_rule_name(one, number)}")
                for number, one in enumerate(listed, start=1)
            )
    return _Table(select.NAME, None, own, select.Config, f"{place}]", (EDITS,), subtables, tuple(arrays))


def _tokenize_tables(table: dict[str, Any] | None, place: str) -> Iterator[_Table]:
    if table is None:
        return
    training = table.get(TRAIN_TABLE)
    if table.get("tokenizer") == TRAIN:
        if not isinstance(training, dict | None):
            raise RecipeError(f"{place}: [tokenize.train] must be a table of training settings")
        yield _Table(train_stage.NAME, None, training or {}, train_stage.Config, f"{place}, [tokenize.train]")
    elif training is not None:
        raise RecipeError(
            f'{place}, [tokenize.train]: the recipe trains no tokenizer; set tokenizer = "train" or remove the table'
        )
    values, place = _without(table, [TRAIN_TABLE]), f"{place}, [tokenize]"
    yield _Table(tokenize.NAME, None, values, tokenize.Config, place, (ENABLED, TRAIN_TABLE))


def _enabled(table: dict[str, Any] | None, place: str, key: str = ENABLED) -> dict[str, Any] | None:
    """Return the table without the key that disables its stage, or None if the stage is disabled or has no table."""
    if table is None:
        return None
    switch = table.get(key, True)
    if not isinstance(switch, bool):
        raise RecipeError(f"{place}: {key} must be true or false")
    return _without(table, [key]) if switch else None


def _without(table: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}


def _settings(table: _Table, config: Any, folder: str) -> Settings:
    plain = msgspec.json.decode(msgspec.json.encode(asdict(config)))
    content, operations = _without(plain, TOLERANCES), {key: plain[key] for key in TOLERANCES if key in plain}
    if table.stage == annotate.NAME:
        content["annotators"], paths = _annotator_settings(table, folder)
        operations[annotate.MODELS] = _model_paths(table)
        operations |= {annotate.PATHS: paths} if paths else {}
    if table.stage == passages.NAME:
        content[passages.SEARCHES] = {_subtable_name(one): _plain(one) for one in table.subtables}
    if table.stage == select.NAME:
        content = _select_content(content, table)
    if table.stage == normalize.NAME:
        content["source"] = table.source
        operations |= {CODE_FOLDER: folder} if content["transform"] else {}
    if table.stage == tokenize.NAME and content["tokenizer"] != TRAIN and not is_custom(content["tokenizer"]):
        operations[PATH] = content.pop("tokenizer")
        content["tokenizer_sha256"] = _file_hash(operations[PATH])
    return Settings(content, operations)


def _select_content(content: dict[str, Any], table: _Table) -> dict[str, Any]:
    """Return the settings of select, without those that have no effect in this recipe."""
    unused = {name for name in (RULES, BUCKETS) if not content[name]} | ({EQUAL} if not table.subtables else set())
    edits = {EDITS: {_subtable_name(one): _plain(one) for one in table.subtables}} if table.subtables else {}
    return {**_without(content, unused), **edits}


def _annotator_settings(table: _Table, folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the chosen annotators as they enter the fingerprint, and their other settings, by name.
    The former include the version of each annotator, and the hashes of models and other files in place of their paths.
    """
    if not table.subtables:
        raise RecipeError(
            f"{table.place}: no annotator is chosen; add a subtable such as [annotate.{next(iter(TABLES))}]"
        )
    found, paths = {}, {}
    for one in table.subtables:
        name, config = _subtable_name(one), convert(one.values, one.kind, one.place)
        if isinstance(config, UserConfig):
            found[name], paths[name] = separated(config, name, one.place, folder)
            continue
        if isinstance(config, ModelServerConfig):
            found[name], paths[name] = config.content(), config.operations()
            continue
        values = msgspec.json.decode(msgspec.json.encode(asdict(config)))
        hashed = (annotate.MODEL,) if values.get("sha256") else ()
        content, others = TABLES[name].separated(values, one.place)
        found[name] = {**_without(content, hashed), "version": one.kind.VERSION}
        paths |= {name: others} if others else {}
    return found, paths


def _model_paths(table: _Table) -> dict[str, str]:
    """Return the path of each annotator's model whose sha256 the recipe gives."""
    hashed = [one for one in table.subtables if one.values.get("sha256") and annotate.MODEL in one.values]
    return {_subtable_name(one): one.values[annotate.MODEL] for one in hashed}


def _plain(table: _Table) -> dict[str, Any]:
    """Return the settings of a table as JSON values, with every default written out."""
    return msgspec.json.decode(msgspec.json.encode(asdict(convert(table.values, table.kind, table.place))))


def _subtable_name(table: _Table) -> str:
    return table.place.rpartition(".")[2].removesuffix("]")


def _contract_settings(tokenize: Settings) -> Settings:
    """Return the settings of the contract stage, which are those of the tokenize stage that determine the contract."""
    content = {key: tokenize.content[key] for key in names_of(contract_stage.Config) if key in tokenize.content}
    return Settings(content, {key: tokenize.operations[key] for key in (PATH,) if key in tokenize.operations})


def _file_hash(path: str) -> str:
    """Return the sha256 of a tokenizer file. The fingerprint contains this hash instead of the file's path."""
    if urls.is_local(path) and os.path.isdir(path):
        inside = f"{path}/tokenizer.json"
        advice = f"set tokenize.tokenizer = {inside!r}" if os.path.isfile(inside) else CHOICES
        raise TokenizerError(f"tokenizer {path} is a directory; {advice}")
    try:
        return hashlib.sha256(urls.read_bytes(path)).hexdigest()
    except (NotFoundError, OSError) as error:
        raise TokenizerError(f"tokenizer {path} was not found; {CHOICES}") from error
