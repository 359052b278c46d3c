"""Lists every key of a recipe (type, default, meaning, example), and generates a JSON schema of recipes, for use in
text editors. Both are derived from the type hints of the config classes, so they cannot differ from what a run accepts.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from datakit.annotate.model_server.config import ModelServerConfig
from datakit.annotate.stage import Config as Annotate
from datakit.annotate.tables import TABLES as ANNOTATORS
from datakit.annotate.user.config import UserConfig
from datakit.conditions.config import Rule
from datakit.consolidate.stage import Config as Consolidate
from datakit.datasets.expansion import CATALOG_KEY, CatalogKeys
from datakit.dedup.stage import Config as Dedup
from datakit.engine.disk_limits import DiskLimits
from datakit.normalize.config import Config as Normalize
from datakit.passages.config import SearchConfig
from datakit.recipe import RULES, Recipe, Source
from datakit.rule_sets.config import SET, SetKeys
from datakit.select.bucket_config import Bucket
from datakit.select.edit_config import EditConfig as Edit
from datakit.select.stage import Config as Select
from datakit.tokenize.config import Config as Tokenize
from datakit.tokenize.train_stage import Config as Train
from datakit.toml_config import key

SOURCES = "sources"
FINAL_RULES, BUCKETS = "select.rules", "select.buckets"
ARRAYS = (SOURCES, RULES, FINAL_RULES, BUCKETS)  # arrays of tables
EDITS = "select.edits.NAME"  # a table for each edit, with a name that the user chooses
PASSAGES = "passages.NAME"  # likewise for each search for passages
SCHEMA = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True)
class _Switch:
    """The key that a table has in addition to those of its stage's config class."""

    enabled: Annotated[bool, key("`false` leaves the stage out even though the recipe has its table.", False)] = True


@dataclass(frozen=True)
class _Write:
    """The key of [consolidate] that is not in the stage's config class."""

    write: Annotated[
        bool,
        key("`false` skips the stage. This does not change the token cache, because no stage reads the output.", False),
    ] = True


SEVERAL = (
    "A recipe can have several, in tables with these keys and names of your choice: `[annotate.{}.NAME]`; `NAME` is "
    "also the name of the table of attributes. See [several classifiers](annotate/classifier.md#several-classifiers)."
)
SHORTHANDS = {SetKeys: SET, CatalogKeys: CATALOG_KEY}  # the keys with which a table needs no other key
NAME = "NAME"  # the part of a table's header that stands for a name of the user's choice


def annotator_tables() -> Iterator[tuple[str, type]]:
    """Yield the tables of annotators, and the classes that define their keys."""
    for name, table in ANNOTATORS.items():
        yield f"annotate.{name}", table.kind
        if table.files:
            yield f"annotate.{name}.{table.files}.{NAME}", table.file_kind
    yield f"annotate.user.{NAME}", UserConfig
    yield f"annotate.model_server.{NAME}", ModelServerConfig


# Table -> the classes that define its keys; "" stands for the top level.
TABLES: dict[str, tuple[type, ...]] = {
    "": (Recipe,),
    SOURCES: (Source, CatalogKeys),
    "normalize": (Normalize,),
    "annotate": (_Switch, Annotate),
    **{name: (kind,) for name, kind in annotator_tables()},
    RULES: (Rule, SetKeys),
    "dedup": (_Switch, Dedup),
    "passages": (_Switch,),
    PASSAGES: (SearchConfig,),
    "select": (Select,),
    EDITS: (Edit,),
    FINAL_RULES: (Rule, SetKeys),
    BUCKETS: (Bucket,),
    "consolidate": (_Write, Consolidate),
    "tokenize": (_Switch, Tokenize),
    "tokenize.train": (Train,),
    "limits": (DiskLimits,),
}
MEANINGS = {
    "": "These keys go at the top of the file, before any table.",
    SOURCES: (
        "One table per source. With `[dedup]`, a document found in several sources is kept in the first of them. A "
        "table with `catalog` stands for a public dataset, and needs no other key. See [sources](sources.md#catalog)."
    ),
    "normalize": "Determines how files become documents, for all sources.",
    "annotate": (
        "Computes facts about documents, and writes one table of attributes per annotator. It removes and changes no "
        "document. Each subtable chooses an annotator; `[annotate.script]` has no settings. See "
        "[language](annotate/language.md), [personal data](annotate/personal.md), "
        "[heuristics](annotate/heuristics.md), [classifiers](annotate/classifier.md), "
        "[contamination](annotate/contamination.md), [lists](annotate/lists.md), "
        "[your own functions](annotate/user.md) and [model servers](annotate/model-server.md); "
        "[choosing thresholds](annotate/choosing-thresholds.md) shows how to look at the results."
    ),
    "annotate.language": "The language of each document, with its score.",
    "annotate.script": "The scripts of each document.",
    "annotate.personal": "Personal data, as spans of the text.",
    "annotate.heuristics": "Numbers about words, lines and repetitions, for rules such as those of Gopher and FineWeb.",
    "annotate.classifier_fasttext": (f"The scores of a fastText classifier. {SEVERAL.format('classifier_fasttext')}"),
    "annotate.classifier_linear": (
        f"The scores of a linear classifier that datakit has trained. {SEVERAL.format('classifier_linear')}"
    ),
    "annotate.classifier_onnx": (
        "The scores of a classifier in ONNX format. Needs `pip install '.[onnx]'`. See "
        f"[classifiers in ONNX format](annotate/classifier_onnx.md). {SEVERAL.format('classifier_onnx')}"
    ),
    "annotate.contamination": "The items of evaluation sets of which a document contains n-grams.",
    "annotate.contamination.sets.NAME": "One table per evaluation set, with a name of your choice in place of `NAME`.",
    "annotate.urls": "How many entries of lists match the URL of a document. See [lists](annotate/lists.md).",
    "annotate.urls.lists.NAME": "One table per list; `NAME` is the name of its column.",
    "annotate.words": "How often entries of lists occur in a text, and where. See [lists](annotate/lists.md).",
    "annotate.words.lists.NAME": "One table per list; `NAME` is the name of its first column and of its spans.",
    "annotate.user.NAME": (
        "A function of yours; `NAME` is the name of its table of attributes. See "
        "[your own annotators](annotate/user.md)."
    ),
    "annotate.model_server.NAME": (
        "Asks a model server about each document, and stores the answers; `NAME` is the name of its table of "
        "attributes. Texts leave the machine only if the recipe has such a table. See "
        "[model servers](annotate/model-server.md)."
    ),
    RULES: (
        "Each table is a rule, which removes documents before duplicates are searched for, or protects them from the "
        "rules that follow. A table with `set` stands for all rules of a [rule set](rules.md#rule-sets). See "
        "[rules](rules.md)."
    ),
    "dedup": (
        "Removes near duplicates and equal texts. Without this table, a text is removed only if it equals another text "
        "of the same source."
    ),
    "passages": (
        "Finds lines, paragraphs and substrings that occur several times in the documents that rules and dedup retain, "
        "and marks the copies as spans, which edits can cut or mask. Each subtable is a search. See "
        "[passages](passages.md)."
    ),
    PASSAGES: (
        "A search for copies. NAME is any name of lowercase letters, digits and `_`; edits refer to its spans as "
        "`passages.NAME`."
    ),
    "select": "Decides which documents leave the dataset, and how texts are edited.",
    EDITS: (
        "Masks or cuts spans that annotators or searches for passages have found. NAME is any name of lowercase "
        "letters, digits, `-` and `_`, under which the edit is counted. Edits change the token cache and the published "
        "dataset, but not the ids of documents. See [Edits](edits.md)."
    ),
    FINAL_RULES: (
        "Each table is a rule that removes documents after texts are edited; its expressions may also read facts about "
        "the edits, such as `edited.bytes`. A table with `set` stands for a rule set. See "
        "[final rules](rules.md#final-rules)."
    ),
    BUCKETS: (
        "Each table is a document bucket: a named part of each source, which mixtures read as `source.bucket`. The "
        "first bucket that applies to a document gets it; all others are in the bucket `rest`. See "
        "[document buckets](rules.md#document-buckets)."
    ),
    "consolidate": "Writes the documents that stay as a dataset to publish. The token cache does not depend on it.",
    "tokenize": "Writes a token cache. Without this table, the run ends when the documents are written.",
    "tokenize.train": 'Settings for `tokenizer = "train"`.',
    "limits": (
        "Limits on the disk space that a run takes. They never change the output, so a stopped run can be continued "
        "with other limits. See [Limits on disk use](operations.md#limits-on-disk-use)."
    ),
}


@dataclass(frozen=True)
class RecipeKey:
    """A key of a recipe. `default` and `example` are in TOML notation; `default` is None for a key without a
    default.
    """

    table: str
    name: str
    type: str
    required: bool
    default: str | None
    example: str
    meaning: str


def heading(table: str) -> str:
    """Return a table's header as written in a recipe, e.g. `[[sources]]`, or "(top)" for the top-level keys."""
    return f"[[{table}]]" if table in ARRAYS else f"[{table}]" if table else "(top)"


def recipe_keys() -> list[RecipeKey]:
    """Return every key, in the order of TABLES and of the fields of the config classes."""
    return [entry for table, kinds in TABLES.items() for kind in kinds for entry in _keys(table, kind)]


def _keys(table: str, kind: type) -> Iterator[RecipeKey]:
    hints = get_type_hints(kind, include_extras=True)
    inherited = get_type_hints(Normalize, include_extras=True)
    for field in fields(kind):
        hint, default, meaning = hints[field.name], field.default, ""
        if get_origin(hint) is not Annotated:
            if kind is not Source:
                continue  # not a key of this table: a field that holds tables, or the field `origin` of Recipe
            hint, meaning = inherited[field.name], f"Replaces `normalize.{field.name}` for this source."
        meta = next(extra for extra in get_args(hint) if isinstance(extra, msgspec.Meta))
        if field.default_factory is not MISSING:
            default = field.default_factory()
        shown = None if default in (MISSING, None, {}) else toml(default)
        example = toml((meta.examples or [None])[0])
        yield RecipeKey(
            table,
            field.name,
            _type(get_args(hint)[0]),
            default is MISSING,
            shown,
            example,
            meaning or meta.description or "",
        )


def toml(value: Any) -> str:
    """Return a value in TOML notation.

    >>> print(toml(["a", 1, True]), toml({"year": "int64"}))
    ["a", 1, true] { year = "int64" }
    """
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {toml(entry)}' for name, entry in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)


_WORDS = {Any: "value", str: "string", int: "integer", float: "number", bool: "boolean"}


def _type(hint: Any) -> str:
    """Return a description of a type hint in TOML's terms. `None` is not mentioned, because TOML has no null."""
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_type(part) for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is tuple:
        return f"list of {_plural(get_args(hint)[0])}"
    return f"table of {_plural(get_args(hint)[1])}" if get_origin(hint) is dict else _WORDS[hint]


def _plural(hint: Any) -> str:
    """Return a description of several values of a type.

    >>> _plural(str), _plural(tuple[str, ...])
    ('strings', 'lists of strings')
    """
    first, *rest = _type(hint).split(" ", 1)
    return " ".join([f"{first}s", *rest])


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of recipes: names, types, choices, defaults and meanings of all keys."""
    tables = {table: _table_schema(table) for table in TABLES}
    recipe = tables.pop("")
    for nested in sorted((table for table in tables if "." in table), key=lambda table: table.count(".")):
        table, *inner, name = nested.split(".")
        parent = tables[table]
        for part in inner:
            parent = parent["properties"].setdefault(part, {"type": "object", "properties": {}})
        schema = tables.pop(nested)
        schema = {"type": "array", "items": schema} if nested in ARRAYS else schema
        if table == "annotate" and name in ANNOTATORS and ANNOTATORS[name].nameable:
            several = {"type": "object", "minProperties": 1, "additionalProperties": schema}
            schema = {"anyOf": [schema, several], "description": schema["description"]}
        parent |= {"additionalProperties": schema} if name == NAME else {}
        parent["properties"] |= {} if name == NAME else {name: schema}
    arrays = {name: {"type": "array", "items": tables[name]} for name in (SOURCES, RULES)}
    recipe["properties"] |= {**tables, **arrays, SOURCES: {**arrays[SOURCES], "minItems": 1}}
    recipe["required"].append(SOURCES)
    return {"$schema": SCHEMA, "title": "datakit recipe", **recipe}


def _table_schema(table: str) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for kind in TABLES[table]:
        _, components = msgspec.json.schema_components([kind])
        found = components[kind.__name__]["properties"]
        properties |= {entry.name: _without_null(found[entry.name]) for entry in _keys(table, kind)}
    if table == SOURCES:
        own = _table_schema("normalize")["properties"]
        properties = {name: own.get(name, schema) for name, schema in properties.items()}
        for name in own:
            properties.get(name, {}).pop("default", None)
    required = [entry.name for entry in recipe_keys() if entry.table == table and entry.required]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    shorthand = next((name for kind, name in SHORTHANDS.items() if kind in TABLES[table]), None)
    if shorthand is not None:
        schema["anyOf"] = [{"required": required}, {"required": [shorthand]}]
    else:
        schema["required"] = required
    return {**schema, "description": MEANINGS[table]}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    parts = [part for part in schema.pop("anyOf", []) if part != {"type": "null"}]
    if schema.get("default", 0) is None:
        del schema["default"]
    return {**schema, **parts[0]} if len(parts) == 1 else {**schema, "anyOf": parts} if parts else schema
