"""Defines an entry of the catalog: the facts about a public dataset, and the source that reads it.

An entry is a TOML file, and its name is the file's name. Every figure and license in it is from public documentation,
which `references` names. What the documentation does not state is left out and shown as "not stated". What is known
only from third-party code says so where it stands, and a trap that no page confirms begins with "Unconfirmed".

    title = "..."                    # also summary, link, access, revision_rule, traps, references
    [license]                        # `spdx`, an SPDX expression, or `name` for anything else; `url` leads to its text
    [size]                           # bytes to download, documents, tokens: each only if stated
    [source]                         # keys of a recipe's [[sources]]; no `url` if the files must be obtained first
    [columns]                        # column -> what it holds
    [parameters.NAME]                # a part of the source that the recipe chooses, such as a language

A parameter replaces `{NAME}` in the `url` and the `include` of [source]. Its value must match `form` as a whole, so a
value can never lead to another repository.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from datakit.errors import RecipeError
from datakit.toml_config import check_keys, convert, decoded, names_of

ACCESS = {
    "open": "anyone can download it",
    "account": "the store requires an account",
    "gated": "its terms must be accepted on its page first",
    "manual": "its files must be obtained and prepared first",
}
USES = ("training", "evaluation")
NOT_STATED = "not stated"
TABLES = ("license", "size", "source", "columns", "parameters")  # the tables of an entry
LOCATED = ("url", "include")  # the keys of a source in which parameters are replaced


@dataclass(frozen=True)
class License:
    """A license: an SPDX expression (`spdx`), or the `name` of other terms, and the `url` of its text or of the page
    that states it.
    """

    url: str
    spdx: str | None = None
    name: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if (self.spdx is None) == (self.name is None):
            raise RecipeError("a license has either `spdx` or `name`")

    @property
    def shown(self) -> str:
        """The SPDX expression or the name."""
        return self.spdx or self.name or NOT_STATED

    @property
    def of_source(self) -> str | None:
        """The `license` of a source: the SPDX expression, or the URL of other terms. None if none is stated."""
        return self.spdx or (None if self.name == NOT_STATED else self.url)


@dataclass(frozen=True)
class Size:
    """The size of a dataset or of a part of it. bytes: those to download. None stands for "not stated"."""

    bytes: int | None = None
    documents: int | None = None
    tokens: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Parameter:
    """A choice that a recipe makes. form: a regular expression. values: the sizes of some values; others may exist."""

    meaning: str
    form: str
    example: str
    values: Mapping[str, Size] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.accepts(self.example):
            raise RecipeError(f"the example {self.example!r} does not have the form {self.form!r}")

    def accepts(self, value: str) -> bool:
        """Return True if a value has the parameter's form."""
        return re.fullmatch(self.form, value) is not None


@dataclass(frozen=True)
class Entry:
    """An entry. group: its folder, such as `web`. obtain: what to do before the dataset can be read, if anything.
    source: the keys of a recipe's [[sources]] table, except `name` and `license`.
    """

    name: str
    group: str
    title: str
    summary: str
    link: str
    access: str
    revision_rule: str
    traps: tuple[str, ...]
    references: tuple[str, ...]
    license: License
    size: Size
    source: Mapping[str, Any]
    columns: Mapping[str, str]
    parameters: Mapping[str, Parameter]
    use: str = USES[0]
    obtain: str = ""

    def __post_init__(self) -> None:
        if self.access not in ACCESS or self.use not in USES:
            raise RecipeError(f"access is one of {', '.join(ACCESS)}, and use one of {', '.join(USES)}")
        if (self.access == "open") == bool(self.obtain):
            raise RecipeError("`obtain` says how to get access, so all entries have it except those with access = open")

    def needed(self, replaced: Mapping[str, Any]) -> list[str]:
        """Return the parameters on which the source depends, if a recipe replaces these of its keys."""
        texts = [one for key in LOCATED if key not in replaced for one in _texts(self.source.get(key, ""))]
        return [name for name in self.parameters if any(f"{{{name}}}" in text for text in texts)]


def _texts(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def parse_entry(document: Mapping[str, Any], name: str, group: str, place: str) -> Entry:
    """Parse a TOML document. Raises RecipeError for an unknown or a missing key, and for a value of the wrong type."""
    check_keys(document, [key for key in names_of(Entry) if key not in ("name", "group")], place)
    missing = [table for table in TABLES[:-1] if table not in document]
    if missing:
        raise RecipeError(f"{place}: [{missing[0]}] is missing")
    parameters = {
        key: _parameter(table, f"{place}, parameter {key!r}") for key, table in document.get("parameters", {}).items()
    }
    tables = {
        "name": name,
        "group": group,
        "license": decoded(document["license"], License, f"{place}, [license]"),
        "size": decoded(document["size"], Size, f"{place}, [size]"),
        "parameters": parameters,
    }
    return convert({**document, **tables}, Entry, place)


def _parameter(table: Mapping[str, Any], place: str) -> Parameter:
    values = {key: decoded(size, Size, f"{place}, value {key!r}") for key, size in table.get("values", {}).items()}
    return decoded({**table, "values": values}, Parameter, place)
