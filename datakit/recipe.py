"""Defines the recipe format (sources and the tables of stages), checks names and keys, and applies `--set`.

A recipe is a TOML file, given by its path or by its name in the catalog:

    name = "shelf"

    [[sources]]
    name = "novels"
    url = "texts/novels"            # a path (relative to this file) or any URL that fsspec supports
    include = ["**/*.jsonl.gz"]

    [dedup]                         # a table enables its stage; an empty table keeps every default
    threshold = 0.9

    [tokenize]
    tokenizer = "gpt2.json"

This module checks names, types and the keys of sources. The tables of stages are decoded by `pipeline.configure`,
because this module must not import the stages. Unknown keys are always errors. The order of sources matters: a document
found in several sources is kept in the first of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from datakit.errors import RecipeError, suggestion
from datakit.toml_config import assign, check_keys, convert, decoded, find_toml, names_of, read_toml

CATALOG = Path(__file__).with_name("catalog")
NAME_RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
RESERVED = ("sources",)  # a directory in the root that belongs to no dataset


@dataclass(frozen=True)
class Source:
    """A source: where its files are and how to read them. In fields from `format` on, None defers to `[normalize]`."""

    name: str
    url: str
    include: tuple[str, ...] | None = None  # globs relative to the URL; None selects every file
    exclude: tuple[str, ...] | None = None
    revision: str | None = None  # pins a remote source permanently, e.g. a commit of a Hub dataset
    format: str | None = None
    text: str | None = None  # the column that holds the text
    id: str | None = None  # the column that becomes source_id
    where: str | None = None  # a predicate on a record's columns
    sample: float | None = None  # the share of documents to keep, selected by their ids
    transform: str | None = None  # "package.module:function"; maps an Arrow batch to an Arrow batch
    transform_version: int | str | None = None  # chosen by the transform's author; part of the fingerprint


@dataclass(frozen=True)
class Recipe:
    """The definition of a dataset. The tables of stages are not decoded; None disables an optional stage."""

    name: str
    sources: tuple[Source, ...]
    description: str = ""
    normalize: dict[str, Any] = field(default_factory=dict)
    dedup: dict[str, Any] | None = None
    consolidate: dict[str, Any] = field(default_factory=dict)
    tokenize: dict[str, Any] | None = None
    origin: str = ""  # the recipe's file, shown in messages; not part of the definition

    @property
    def place(self) -> str:
        """The recipe's file or name, as shown in error messages."""
        return self.origin or f"recipe {self.name!r}"

    def document(self) -> dict[str, Any]:
        """Return the equivalent TOML document, without settings that are None or empty strings."""
        plain = {key: value for key, value in asdict(self).items() if key != "origin" and value not in (None, "")}
        plain["sources"] = [_source_document(source) for source in plain["sources"]]
        return plain

    def with_overrides(self, assignments: Iterable[str]) -> Recipe:
        """Return a copy with assignments such as `dedup.threshold=0.9` or `sources.web.sample=0.1` applied in order.

        Values are parsed as TOML, and a bare word is a string. Relative paths in assignments are relative to the
        working directory.
        """
        document = self.document()
        for assignment in assignments:
            _assign(document, assignment)
        return parse_recipe(document, self.place, Path.cwd())


def _source_document(source: dict[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in source.items() if value is not None}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}


def load_recipe(name_or_path: str | os.PathLike[str]) -> Recipe:
    """Load a recipe by catalog name or file. Raises RecipeError, which names the place and the nearest valid name."""
    path = find_toml(name_or_path, CATALOG, "no recipe {!r}: neither a file nor a catalog name", RecipeError)
    document = read_toml(path, "give a recipe file or a catalog name")
    return parse_recipe(document, str(path), path.resolve().parent)


def catalog_names() -> list[str]:
    """Return the names of the recipes that come with datakit."""
    return sorted(path.stem for path in CATALOG.glob("*.toml"))


def parse_recipe(document: dict[str, Any], place: str, base: Path) -> Recipe:
    """Parse a TOML document, in which relative paths are relative to `base`. Raises RecipeError."""
    check_keys(document, (name for name in names_of(Recipe) if name != "origin"), place)
    tables = document.get("sources", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise RecipeError(f"{place}: sources must be [[sources]] tables, one per source")
    sources = tuple(_source(table, number, place, base) for number, table in enumerate(tables, start=1))
    recipe = convert({**document, "sources": [], "origin": place}, Recipe, place)
    _check_names(recipe.name, sources, place)
    tokenize = _with_absolute_tokenizer(recipe.tokenize, base)
    return Recipe(**{**vars(recipe), "sources": sources, "tokenize": tokenize})


def _source(table: dict[str, Any], number: int, place: str, base: Path) -> Source:
    here = f"{place}, source {table.get('name', number)!r}"
    source = decoded(table, Source, here)
    return Source(**{**vars(source), "url": absolute(source.url, base)})


def absolute(url: str, base: Path) -> str:
    """Make a path absolute. URLs and placeholders (`{stdlib}`) are returned unchanged."""
    if "://" in url or url.startswith("{"):
        return url
    return os.path.normpath(base / Path(url).expanduser())


NOT_A_FILE = re.compile(r"train|bytes|[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # or code: package.module:function


def _with_absolute_tokenizer(table: dict[str, Any] | None, base: Path) -> dict[str, Any] | None:
    tokenizer = table.get("tokenizer") if table else None
    if table is None or not isinstance(tokenizer, str) or NOT_A_FILE.fullmatch(tokenizer):
        return table
    return {**table, "tokenizer": absolute(tokenizer, base)}


def _check_names(name: str, sources: Sequence[Source], place: str) -> None:
    if not sources:
        raise RecipeError(f"{place}: no sources; add a [[sources]] table with a name and a url")
    seen: set[str] = set()
    for kind, value in (("name", name), *(("source name", source.name) for source in sources)):
        if not NAME_RULE.fullmatch(value):
            raise RecipeError(
                f"{place}: {kind} {value!r} is not a valid directory name; use at most 100 letters, digits, "
                "'.', '_' and '-', starting with a letter or a digit"
            )
    if name in RESERVED:
        raise RecipeError(f"{place}: name {name!r} is reserved for a directory in the root; choose another name")
    for source in sources:
        if source.name in seen:
            raise RecipeError(f"{place}: two sources are named {source.name!r}; give each a unique name")
        seen.add(source.name)


def _assign(document: dict[str, Any], assignment: str) -> None:
    path, separator, value = assignment.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not separator or not all(keys):
        raise RecipeError(f"--set {assignment!r} is not of the form stage.key=value, for example dedup.threshold=0.9")
    table = document
    if keys[0] == "sources":
        if len(keys) < 3:
            raise RecipeError(
                f"--set {assignment!r} names no key of a source; write, for example, sources.web.sample=0.1"
            )
        table, keys = _source_table(document, ".".join(keys[1:-1]), assignment), keys[-1:]
    assign(table, keys, value, f"--set {assignment!r}", RecipeError)


def _source_table(document: dict[str, Any], name: str, assignment: str) -> dict[str, Any]:
    for table in document["sources"]:
        if table["name"] == name:
            return table
    advice = suggestion(name, [table["name"] for table in document["sources"]])
    raise RecipeError(f"--set {assignment!r}: no source {name!r}; {advice}")
