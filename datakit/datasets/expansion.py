"""Replaces each [[sources]] table of a recipe that names a dataset of the catalog by the source that reads it, as if
its keys had been written out.

    [[sources]]
    catalog = "fineweb-2"
    parameters = { language = "deu_Latn" }
    sample = 0.1                                   # any other key replaces that of the catalog

All that follows sees only the keys of the source: its steps, its fingerprint and its lineage are those of the same
source written by hand, and an entry that changes is a changed recipe. `url` may be replaced as well, by that of a copy.
The copy has no revision of its own unless the table sets one, so the catalog's revision then does not apply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from datakit.datasets.entry import LOCATED, Entry
from datakit.datasets.lookup import dataset, dataset_names
from datakit.errors import RecipeError, suggestion
from datakit.toml_config import convert, key, mistakes

CATALOG_KEY, PARAMETERS = "catalog", "parameters"
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
LONGEST_NAME = 100


@dataclass(frozen=True)
class CatalogKeys:
    """The keys that only a [[sources]] table with a dataset of the catalog has."""

    catalog: Annotated[
        str | None,
        key("Stands for the source of a dataset in the catalog (`datakit catalog list`): its URL, revision, patterns, "
            "columns and license. Beside it, all other keys are optional, and replace those of the catalog.",
            "fineweb-edu-10bt"),
    ] = None  # fmt: skip
    parameters: Annotated[
        dict[str, str],
        key("What a dataset of the catalog leaves open, such as the language (`datakit catalog show NAME`).",
            {"language": "deu_Latn"}),
    ] = field(default_factory=dict)  # fmt: skip


def expanded(tables: Sequence[dict[str, Any]], place: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the tables with the keys of the catalog's sources in those that name a dataset, and a message for each
    mistake in these.
    """
    found, messages = list[dict[str, Any]](), list[str]()
    for number, table in enumerate(tables, start=1):
        if not {CATALOG_KEY, PARAMETERS} & table.keys():
            found.append(table)
            continue
        here = f"{place}, source {table.get('name', number)!r}"
        try:
            found.append(_expanded(table, here))
        except RecipeError as error:
            messages.append(str(error))
            rest = {name: value for name, value in table.items() if name not in (CATALOG_KEY, PARAMETERS)}
            found.append({"name": f"source-{number}", "url": ".", **rest})  # never read, but free of further mistakes
    return found, messages


def source_table(entry: Entry, table: Mapping[str, Any], parameters: Mapping[str, str], place: str) -> dict[str, Any]:
    """Return the keys of the source that reads a dataset. table: the recipe's own keys. Raises RecipeError for a
    missing, unknown or malformed parameter, and if the dataset must be obtained first and the table has no `url`.
    """
    source = {**entry.source, **table}
    if "url" in table:
        source = {name: value for name, value in source.items() if name != "revision" or name in table}
    if "url" not in source:
        raise RecipeError(f"{place}: {entry.name} cannot be downloaded by datakit. {entry.obtain}")
    _check_parameters(entry, entry.needed(table), parameters, place)
    for name in LOCATED:
        if name in source and name not in table:
            source[name] = _filled(source[name], parameters)
    license_ = {} if entry.license.of_source is None else {"license": entry.license.of_source}
    return {"name": _name(entry, parameters), **license_, **source}


def _expanded(table: dict[str, Any], place: str) -> dict[str, Any]:
    own = {name: value for name, value in table.items() if name in (CATALOG_KEY, PARAMETERS)}
    if wrong := mistakes(own, CatalogKeys, place):
        raise RecipeError("\n  ".join(wrong))
    keys = convert(own, CatalogKeys, place)
    if keys.catalog is None:
        raise RecipeError(f"{place}: `parameters` has no effect without `catalog`; remove it")
    if keys.catalog not in dataset_names():
        raise RecipeError(f"{place}: the catalog has no dataset {keys.catalog!r}; "
                          f"{suggestion(keys.catalog, dataset_names())}")  # fmt: skip
    others = {name: value for name, value in table.items() if name not in own}
    return source_table(dataset(keys.catalog), others, keys.parameters, place)


def _check_parameters(entry: Entry, needed: Sequence[str], given: Mapping[str, str], place: str) -> None:
    for name in given:
        if name not in entry.parameters:
            known = suggestion(name, entry.parameters) if entry.parameters else "it has none"
            raise RecipeError(f"{place}: {entry.name} has no parameter {name!r}; {known}")
    for name, parameter in entry.parameters.items():
        example = f'parameters = {{ {name} = "{parameter.example}" }}'
        if name not in given and name in needed:
            raise RecipeError(
                f"{place}: {entry.name} needs the parameter {name!r} ({parameter.meaning.rstrip('.')}); write, for "
                f"example, {example}"
            )
        if name in given and not parameter.accepts(given[name]):
            raise RecipeError(
                f"{place}: {given[name]!r} is no {name!r} of {entry.name} ({parameter.meaning.rstrip('.')}); it must "
                f"have the form {parameter.form}, for example {example}"
            )


def _filled(value: Any, parameters: Mapping[str, str]) -> Any:
    if not isinstance(value, str):
        return [_filled(one, parameters) for one in value]
    for name, chosen in parameters.items():
        value = value.replace(f"{{{name}}}", chosen)
    return value


def _name(entry: Entry, parameters: Mapping[str, str]) -> str:
    """Return a name for the source: that of the dataset, followed by the values of its parameters."""
    words = [entry.name, *(parameters[name] for name in entry.parameters if name in parameters)]
    parts = [NOT_IN_NAMES.sub("-", word).strip("-.") for word in words]
    return "-".join(part for part in parts if part)[:LONGEST_NAME]
