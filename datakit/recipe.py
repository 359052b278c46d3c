"""Defines the recipe format (sources and stage tables), checks names and keys, and applies the assignments of `--set`.

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

This module checks the top-level keys and the `[[sources]]` tables. The stage tables are decoded by
`pipeline.configuration`, because this module must not import the stages. Unknown keys are always errors. The order of
sources matters: with `[dedup]`, a document found in several sources is kept in the first of them. A source may also be
a dataset of the catalog (`datasets/expansion.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeGuard

from datakit.datasets import expansion
from datakit.datasets.lookup import dataset_names
from datakit.errors import RecipeError, suggestion
from datakit.rule_sets.expansion import expanded
from datakit.signed_urls import HTTP, query_mistake, split_query, user_info_mistake
from datakit.store_access import access_mistake
from datakit.toml_config import assign, convert, find_toml, key, mistakes, names_of, read_toml, refuse, unknown_keys

CATALOG = Path(__file__).with_name("catalog")
NAME_RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
RULES = "rules"  # the array of tables that hold the rules
SELECT, SELECT_ARRAYS = "select", (RULES, "buckets")  # the table that holds further arrays of tables
RESERVED = ("sources",)  # names that no dataset may have: directories in the root that belong to no dataset


@dataclass(frozen=True)
class Source:
    """A source: where its files are and how to read them. In `format` and the fields after it, None stands for the
    value in `[normalize]`.
    """

    name: Annotated[str, key("The source's name: a directory name, unique in the recipe.", "novels")]
    url: Annotated[
        str,
        key(
            "A file, a directory or a glob, relative to the recipe's file, or a URL (s3, gs, hf, https, git+https).",
            "texts",
        ),
    ]
    include: Annotated[
        tuple[str, ...] | None,
        key("Patterns of the files to read, relative to the URL; a pattern without `/` matches names at any depth.",
            ["*.jsonl.gz"]),
    ] = None  # fmt: skip
    exclude: Annotated[tuple[str, ...] | None, key("Patterns of files to leave out.", ["**/drafts/**"])] = None
    splits: Annotated[
        tuple[str, ...] | dict[str, tuple[str, ...]] | None,
        key("Splits to read, by their usual names or with the patterns of their files, in place of `include`; the "
            "column `split` holds the name of each record's split (docs/sources.md).", ["train", "validation"]),
    ] = None  # fmt: skip
    outside_links: Annotated[
        bool, key("Follow links that lead out of the source's folder; otherwise they are refused.", True)
    ] = False
    revision: Annotated[
        str | None, key("Pins a remote source permanently, e.g. to a commit of a Hub dataset.", "87f09149ef47")
    ] = None
    files: Annotated[
        tuple[str, ...] | str | None,
        key("The files of a web server, as paths relative to `url` or as URLs, or the text file that lists them; "
            "without it, the links of the page at `url` are followed.", "warc.paths.gz"),
    ] = None  # fmt: skip
    history: Annotated[
        bool,
        key("Read the commits of a Git repository, up to the revision, in place of the files: one document for each, "
            "with its message and its diff.", True),
    ] = False  # fmt: skip
    private_redirects: Annotated[
        bool,
        key("Follow redirects of a server to addresses that are not public, such as those of a mirror in your own "
            "network; otherwise they are refused.", True),
    ] = False  # fmt: skip
    anonymous: Annotated[
        bool, key("Read a public bucket (s3, gs) without credentials, even if you have some.", True)
    ] = False
    requester_pays: Annotated[
        bool, key("Agree to be charged for reading a bucket (s3, gs) whose owner lets readers pay.", True)
    ] = False
    endpoint: Annotated[
        str | None,
        key("The address of the store, if it is not the usual one of S3 or Google Cloud Storage, such as that of R2, "
            "MinIO or a proxy.", "https://0a1b.r2.cloudflarestorage.com"),
    ] = None  # fmt: skip
    license: Annotated[
        str | None,
        key("The license of the texts (an SPDX identifier or a URL), for `datakit publish`, which needs it, `lineage` "
            "and `report`; changes no output.", "CC-BY-4.0"),
    ] = None  # fmt: skip
    # The fields below are described in normalize/config.py.
    format: str | None = None
    text: str | dict[str, Any] | None = None
    id: str | None = None
    where: str | None = None
    types: dict[str, str] | None = None
    sample: float | None = None
    sample_seed: int | None = None
    limit: int | None = None
    transform: str | None = None
    transform_version: int | str | None = None
    quoting: str | None = None
    keep: tuple[str, ...] | None = None
    drop: tuple[str, ...] | None = None
    rename: dict[str, str] | None = None
    conflicts: dict[str, str] | None = None
    extract: str | None = None
    extract_seconds: int | None = None


@dataclass(frozen=True)
class Recipe:
    """The definition of a dataset. The stage tables are not decoded. None in place of a table disables an optional
    stage.
    """

    name: Annotated[str, key("The dataset's name, and its directory in the root.", "shelf")]
    sources: tuple[Source, ...]
    description: Annotated[str, key("A one-line description for `datakit catalog list`.", "English novels")] = ""
    normalize: dict[str, Any] = field(default_factory=dict)
    annotate: dict[str, Any] | None = None
    rules: tuple[dict[str, Any], ...] = ()
    dedup: dict[str, Any] | None = None
    passages: dict[str, Any] | None = None
    select: dict[str, Any] = field(default_factory=dict)
    consolidate: dict[str, Any] = field(default_factory=dict)
    tokenize: dict[str, Any] | None = None
    limits: dict[str, Any] = field(default_factory=dict)
    origin: str = ""  # the recipe's file, shown in messages; not part of the definition

    @property
    def place(self) -> str:
        """The recipe's file or name, as shown in error messages."""
        return self.origin or f"recipe {self.name!r}"

    @property
    def folder(self) -> str:
        """The folder of the recipe's file, or "" if the recipe was not read from a file."""
        return str(Path(self.origin).resolve().parent) if self.origin and os.path.isfile(self.origin) else ""

    def document(self) -> dict[str, Any]:
        """Return the recipe as a TOML document, without settings that are None or empty strings."""
        plain = {key: value for key, value in asdict(self).items() if key != "origin" and value not in (None, "", ())}
        plain["sources"] = [_source_document(source) for source in plain["sources"]]
        plain |= {RULES: list(plain[RULES])} if RULES in plain else {}
        return plain

    def with_overrides(self, assignments: Iterable[str]) -> Recipe:
        """Return a copy of the recipe to which assignments such as `dedup.threshold=0.9` or `sources.web.sample=0.1`
        have been applied, one after another.

        Values are parsed as TOML; a value that is not valid TOML is taken as a string. Relative paths in assignments
        are relative to the working directory.
        """
        document = self.document()
        for assignment in assignments:
            _assign(document, assignment)
        return parse_recipe(document, self.place, Path.cwd())


def _source_document(source: dict[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in source.items() if value is not None}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}


Check = Callable[[dict[str, Any], str], list[str]]


def load_recipe(name_or_path: str | os.PathLike[str], check_tables: Check = lambda document, place: []) -> Recipe:
    """Load a recipe, given its catalog name or the path of its file. Raises RecipeError, which states the place of each
    mistake and, for an unknown name, suggests a known one.

    check_tables: a function that returns the mistakes in the stage tables, given the TOML document and the place to
    name in messages. It is called only if there are other mistakes, so that one error reports all of them.
    """
    if os.path.isdir(name_or_path):
        name = os.fspath(name_or_path)
        raise RecipeError(f"{name} is a directory; `datakit init {name}` writes a recipe for it")
    if name_or_path in dataset_names() and not os.path.exists(name_or_path) and name_or_path not in catalog_names():
        raise RecipeError(
            f"{name_or_path} is a dataset of the catalog, not a recipe; `datakit catalog recipe {name_or_path} > "
            "recipe.toml` writes a recipe that reads it"
        )
    path = find_toml(name_or_path, CATALOG, "no recipe {!r}: neither a file nor a catalog name", RecipeError)
    document = read_toml(path, "give a recipe file or a catalog name")
    return parse_recipe(document, str(path), path.resolve().parent, check_tables)


def catalog_names() -> list[str]:
    """Return the names of the recipes that come with datakit."""
    return sorted(path.stem for path in CATALOG.glob("*.toml"))


def parse_recipe(
    document: dict[str, Any], place: str, base: Path, check_tables: Check = lambda document, place: []
) -> Recipe:
    """Parse a TOML document, in which relative paths are relative to `base`. The rules of a set replace the table that
    names it, and so does the source of a dataset in the catalog. Raises RecipeError, which lists all mistakes.
    """
    tables = document.get("sources", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise RecipeError(f"{place}: sources must be [[sources]] tables, one per source")
    tables, wrong_datasets = expansion.expanded(tables, place)
    document, wrong_sets = _with_rules_of_sets(document, base, place)
    found = unknown_keys(document, (name for name in names_of(Recipe) if name != "origin"), place)
    top = {
        **{name: value for name, value in document.items() if name in names_of(Recipe)},
        "sources": [],
        "origin": place,
    }
    found += mistakes(top, Recipe, place)
    for number, table in enumerate(tables, start=1):
        found += mistakes(table, Source, f"{place}, source {table.get('name', number)!r}")
    found += _url_mistakes(tables, place)
    found += wrong_datasets + wrong_sets
    found += _name_mistakes(document.get("name"), [table.get("name") for table in tables], place)
    if found:
        refuse([*found, *check_tables(document, place)])
    sources = tuple(_source(table, base) for table in tables)
    recipe = convert(top, Recipe, place)
    tables = {
        "tokenize": _with_absolute_template(_with_absolute_tokenizer(recipe.tokenize, base), base),
        "annotate": _with_absolute_paths(recipe.annotate, base),
    }
    return Recipe(**{**vars(recipe), "sources": sources, **tables})


def _with_rules_of_sets(document: dict[str, Any], base: Path, place: str) -> tuple[dict[str, Any], list[str]]:
    """Return the document with the rules of each set that [[rules]] and [[select.rules]] name, and a message for each
    mistake in the tables that name one. Values of the wrong type are reported elsewhere.
    """
    rules, select, found = document.get(RULES), document.get(SELECT), list[str]()
    if isinstance(rules, list):
        rules, found = expanded(rules, base, place)
        document = {**document, RULES: rules}
    if isinstance(select, dict) and isinstance(final := select.get(RULES), list):
        final, wrong = expanded(final, base, f"{place}, [{SELECT}]")
        document, found = {**document, SELECT: {**select, RULES: final}}, found + wrong
    return document, found


def _source(table: dict[str, Any], base: Path) -> Source:
    source = convert(table, Source, "source")
    files = absolute(source.files, base) if isinstance(source.files, str) else source.files
    return Source(**{**vars(source), "url": absolute(source.url, base), "files": files})


def absolute(url: str, base: Path) -> str:
    """Return the absolute form of a path that is relative to `base`. URLs, and paths that start with a placeholder
    (`{stdlib}`, see `storage/globs.py`), are returned unchanged.
    """
    if "://" in url or url.startswith("{"):
        return url
    return os.path.normpath(base / Path(url).expanduser())


NOT_A_FILE = re.compile(r"train|bytes|[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # the last form is package.module:function

HUB_NAME = re.compile(r"(?!\.)(?!.*\.json$)[\w.-]+(/[\w.-]+)?(@[\w.-]+)?")  # [ORGANIZATION/]NAME[@REVISION]


def _with_absolute_tokenizer(table: dict[str, Any] | None, base: Path) -> dict[str, Any] | None:
    tokenizer = table.get("tokenizer") if table else None
    if table is None or not isinstance(tokenizer, str) or NOT_A_FILE.fullmatch(tokenizer):
        return table
    path = absolute(tokenizer, base)
    return {**table, "tokenizer": tokenizer if is_hub_name(tokenizer) and not os.path.exists(path) else path}


def _with_absolute_template(table: dict[str, Any] | None, base: Path) -> dict[str, Any] | None:
    template = table.get("chat_template") if table else None
    if table is None or not isinstance(template, str):
        return table
    return {**table, "chat_template": absolute(template, base)}


BUILTIN_MODELS = ("lid.176",)  # values of a model's path that name a model of a library
PATH_KEYS = ("model", "tokenizer", "path", "index_folder")  # the keys of [annotate], at any depth, that hold paths
USER = "user"  # the table in [annotate] that holds annotators of the user's own, whose parameters are left unchanged
MODEL_SERVER = "model_server"  # the table in [annotate] that holds annotators that ask model servers; it has no paths


def _with_absolute_paths(table: dict[str, Any] | None, base: Path) -> dict[str, Any] | None:
    """Return [annotate] with the paths of the files that its annotators read made absolute."""
    if table is None:
        return None
    unchanged = (USER, MODEL_SERVER)
    return {name: one if name in unchanged else _absolute_paths(one, base) for name, one in table.items()}


def _absolute_paths(values: Any, base: Path) -> Any:
    if not isinstance(values, dict):
        return values
    return {
        name: absolute(value, base) if _is_path(name, value) else _absolute_paths(value, base)
        for name, value in values.items()
    }


def _is_path(name: str, value: Any) -> bool:
    return name in PATH_KEYS and isinstance(value, str) and bool(value) and value not in BUILTIN_MODELS


def is_hub_name(tokenizer: Any) -> TypeGuard[str]:
    """Return True if a recipe's value for `tokenizer` has the form of a Hugging Face Hub model name, even if a file
    with this relative path exists.
    """
    return isinstance(tokenizer, str) and bool(HUB_NAME.fullmatch(tokenizer)) and not NOT_A_FILE.fullmatch(tokenizer)


def _name_mistakes(name: Any, sources: Sequence[Any], place: str) -> list[str]:
    """Return a message for each dataset name or source name that cannot be used; values of the wrong type are reported
    elsewhere.
    """
    found = [] if sources else [f"{place}: no sources; add a [[sources]] table with a name and a url"]
    for kind, value in (("name", name), *(("source name", source) for source in sources)):
        if isinstance(value, str) and not NAME_RULE.fullmatch(value):
            found.append(
                f"{place}: {kind} {value!r} is not a valid directory name; use at most 100 letters, digits, "
                "'.', '_' and '-', starting with a letter or a digit"
            )
    if name in RESERVED:
        found.append(f"{place}: name {name!r} is reserved for a directory in the root; choose another name")
    names = [source for source in sources if isinstance(source, str)]
    repeated = [source for source in dict.fromkeys(names) if names.count(source) > 1]
    return found + [f"{place}: two sources are named {source!r}; give each a unique name" for source in repeated]


def _url_mistakes(tables: Sequence[dict[str, Any]], place: str) -> list[str]:
    """Return a message for each source whose URL contains a user name, a password, or an unusable query string, and for
    each with settings that its store does not have.
    """
    found = []
    for number, table in enumerate(tables, start=1):
        url, revision = table.get("url"), table.get("revision")
        if isinstance(url, str) and (
            mistake := user_info_mistake(url) or query_mistake(url, revision) or _files_mistake(table, url)
        ):
            found.append(f"{place}, source {table.get('name', number)!r}: {mistake}")
        if mistake := access_mistake(table):
            found.append(f"{place}, source {table.get('name', number)!r}: {mistake}")
    return found


def _files_mistake(table: dict[str, Any], url: str) -> str:
    """Return a message about `files` beside settings with which it cannot be used, or ""."""
    if table.get("files") is None:
        return ""
    if not url.lower().startswith(HTTP) or split_query(url)[1]:
        return "`files` lists the files of a web server; set `url` to an http:// or https:// URL without a query string"
    return "`files` cannot be used with a revision; remove one of them" if table.get("revision") else ""


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
        table, keys = _named_table(document, "source", ".".join(keys[1:-1]), assignment), keys[-1:]
    elif keys[0] == RULES and len(keys) > 2:
        table, keys = _named_table(document, "rule", ".".join(keys[1:-1]), assignment), keys[-1:]
    elif keys[0] == SELECT and len(keys) > 3 and keys[1] in SELECT_ARRAYS:
        inside = document.get(SELECT, {})
        table, keys = _named_table(inside, keys[1].removesuffix("s"), ".".join(keys[2:-1]), assignment), keys[-1:]
    assign(table, keys, value, f"--set {assignment!r}", RecipeError)


def _named_table(document: dict[str, Any], kind: str, name: str, assignment: str) -> dict[str, Any]:
    """Return the table of the source or the rule (`kind`) with this name."""
    tables = [table for table in document.get(f"{kind}s", ()) if isinstance(table, dict)]
    for table in tables:
        if table.get("name") == name:
            return table
    advice = suggestion(name, [str(table.get("name")) for table in tables])
    raise RecipeError(f"--set {assignment!r}: no {kind} {name!r}; {advice}")
