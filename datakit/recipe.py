"""What a dataset is: sources in order, and what each stage shall do with them.

A recipe is a TOML file (or the name of one in the catalog):

    name = "shelf"

    [[sources]]
    name = "novels"
    url = "texts/novels"            # a path (relative to this file) or any URL that fsspec knows
    include = ["**/*.jsonl.gz"]

    [dedup]                         # a stage's table switches it on; an empty one takes every default
    threshold = 0.9

    [tokenize]
    tokenizer = "gpt2.json"

Only the shape is checked here: names, the keys of a source, types. The stages' own tables stay raw, since this module
lies below the stages; `pipeline.configure` decodes each with the stage's config class. A key that nobody knows is an
error wherever it stands, never ignored: a misspelt threshold must not become a default. The order of the sources
matters: where two hold the same document, the first keeps it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from datakit.errors import RecipeError, suggestion
from datakit.toml_config import check_keys, convert, decoded, names_of, read_toml, toml_value

CATALOG = Path(__file__).with_name("catalog")
NAME_RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
RESERVED = ("sources",)  # the folder of the root that belongs to no dataset


@dataclass(frozen=True)
class Source:
    """One source: where its files are, and how its records are read. `None` leaves a setting to `[normalize]`."""

    name: str
    url: str
    include: tuple[str, ...] | None = None  # globs relative to the URL; None takes every file
    exclude: tuple[str, ...] | None = None
    revision: str | None = None  # what pins a remote source for good: a commit of a Hub dataset
    format: str | None = None
    text: str | None = None  # the column that holds the text
    id: str | None = None  # the column that becomes source_id
    where: str | None = None  # a predicate on a record's columns
    sample: float | None = None  # a share of the documents, by id
    transform: str | None = None  # "package.module:function", Arrow batch to Arrow batch
    transform_version: int | str | None = None  # declared by whoever wrote the transform; in the fingerprint

    def reading(self) -> dict[str, Any]:
        """The settings of this source that override those of `[normalize]`."""
        return {key: value for key in READING_KEYS if (value := getattr(self, key)) is not None}


READING_KEYS = ("format", "text", "id", "where", "sample", "transform", "transform_version")


@dataclass(frozen=True)
class Recipe:
    """A dataset's definition. A stage's table is raw; None says that an optional stage is not in this recipe."""

    name: str
    sources: tuple[Source, ...]
    description: str = ""
    normalize: dict[str, Any] = field(default_factory=dict)
    dedup: dict[str, Any] | None = None
    consolidate: dict[str, Any] = field(default_factory=dict)
    tokenize: dict[str, Any] | None = None
    origin: str = ""  # the file it came from, for messages; no part of what it says

    @property
    def place(self) -> str:
        """Where a reader of an error message finds this recipe."""
        return self.origin or f"recipe {self.name!r}"

    def document(self) -> dict[str, Any]:
        """The recipe as the TOML document that says the same; what it leaves to defaults is absent."""
        plain = {key: value for key, value in asdict(self).items() if key != "origin" and value not in (None, "")}
        plain["sources"] = [_said(source) for source in plain["sources"]]
        return plain

    def with_overrides(self, assignments: Iterable[str]) -> Recipe:
        """The recipe with `dedup.threshold=0.9`, `sources.web.sample=0.1`, ... applied, in order.

        A value is read as TOML; a bare word that is no TOML value is a string. A relative path among them is relative
        to the working directory, as a shell user means it.
        """
        document = self.document()
        for assignment in assignments:
            _assign(document, assignment)
        return parse_recipe(document, self.place, Path.cwd())


def _said(source: dict[str, Any]) -> dict[str, Any]:
    said = {key: value for key, value in source.items() if value is not None}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in said.items()}


def load_recipe(name_or_path: str | os.PathLike[str]) -> Recipe:
    """A recipe by its catalog name or by its file. Raises RecipeError with the place and the nearest valid name."""
    text = os.fspath(name_or_path)
    path = Path(text).expanduser()
    if not text.endswith(".toml") and not path.is_file():
        path = _catalog_path(text)
    document = read_toml(path, "give a recipe file or a name of the catalog")
    return parse_recipe(document, str(path), path.resolve().parent)


def _catalog_path(name: str) -> Path:
    names = catalog_names()
    if name not in names:
        advice = suggestion(name, names)
        raise RecipeError(f"no recipe {name!r}: neither a file nor a name of the catalog; {advice}")
    return CATALOG / f"{name}.toml"


def catalog_names() -> list[str]:
    """The recipes that come with datakit."""
    return sorted(path.stem for path in CATALOG.glob("*.toml"))


def parse_recipe(document: dict[str, Any], place: str, base: Path) -> Recipe:
    """A recipe from a TOML document; `base` is what its relative paths are relative to. Raises RecipeError."""
    check_keys(document, (name for name in names_of(Recipe) if name != "origin"), place)
    tables = document.get("sources", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise RecipeError(f"{place}: sources are written as [[sources]] tables, one a source")
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
    """`url` as it means the same from everywhere; URLs and placeholders (`{stdlib}`) stay as they are."""
    if "://" in url or url.startswith("{"):
        return url
    return os.path.normpath(base / Path(url).expanduser())


NO_FILE = re.compile(r"train|bytes|[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # a tokenizer that is code: package.module:function


def _with_absolute_tokenizer(table: dict[str, Any] | None, base: Path) -> dict[str, Any] | None:
    named = table.get("tokenizer") if table else None
    if table is None or not isinstance(named, str) or NO_FILE.fullmatch(named):
        return table
    return {**table, "tokenizer": absolute(named, base)}


def _check_names(name: str, sources: Sequence[Source], place: str) -> None:
    if not sources:
        raise RecipeError(f"{place}: no source; add a [[sources]] table with a name and a url")
    seen: set[str] = set()
    for kind, value in (("name", name), *(("source name", source.name) for source in sources)):
        if not NAME_RULE.fullmatch(value):
            raise RecipeError(
                f"{place}: {kind} {value!r} cannot name a folder; use letters, digits, '.', '_' and '-', "
                "a letter or digit first, 100 at most"
            )
    if name in RESERVED:
        raise RecipeError(f"{place}: name {name!r} is reserved for datakit's own folder in the root; choose another")
    for source in sources:
        if source.name in seen:
            raise RecipeError(f"{place}: two sources are named {source.name!r}; give each a name of its own")
        seen.add(source.name)


def _assign(document: dict[str, Any], assignment: str) -> None:
    path, separator, value = assignment.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not separator or not all(keys):
        raise RecipeError(f"--set {assignment!r} is not of the form stage.key=value, e.g. dedup.threshold=0.9")
    table = document
    if keys[0] == "sources":
        if len(keys) < 3:
            raise RecipeError(f"--set {assignment!r} names no key of a source, e.g. sources.web.sample=0.1")
        table, keys = _source_table(document, ".".join(keys[1:-1]), assignment), keys[-1:]
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise RecipeError(f"--set {assignment!r}: {key!r} is a value, not a table")
    table[keys[-1]] = toml_value(value.strip())


def _source_table(document: dict[str, Any], name: str, assignment: str) -> dict[str, Any]:
    for table in document["sources"]:
        if table["name"] == name:
            return table
    advice = suggestion(name, [table["name"] for table in document["sources"]])
    raise RecipeError(f"--set {assignment!r}: no source {name!r}; {advice}")
