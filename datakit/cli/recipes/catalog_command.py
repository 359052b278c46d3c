"""Implements `datakit catalog list`, `show` and `recipe`: the recipes that come with datakit, and the public datasets
that recipes can read by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from datakit.cli.console import Cell, bytes_cell, bytes_text, count_text, note, say, say_json, table, wrapped
from datakit.cli.parameters import Flag

if TYPE_CHECKING:
    from datakit.datasets.entry import Entry, Size

HEADERS = ("dataset", "license", "download", "documents", "tokens", "access")
FOLLOWING = """
[dedup]

[tokenize]
tokenizer = "train"      # or the path of a tokenizer.json

[tokenize.train]
vocabulary = 32768"""


def list_catalog(*, json: Flag = False) -> int:
    """List the recipes that come with datakit, and the public datasets that recipes can read by name.

    Examples:
      datakit catalog list
      datakit catalog list --json

    Parameters
    ----------
    json
        Print one JSON object.
    """
    from datakit.datasets.lookup import dataset, dataset_names
    from datakit.recipe import catalog_names, load_recipe

    recipes = [load_recipe(name) for name in catalog_names()]
    entries = [dataset(name) for name in dataset_names()]
    if json:
        say_json({"recipes": [recipe.document() for recipe in recipes], "datasets": [asdict(one) for one in entries]})
        return 0
    rows = [[recipe.name, len(recipe.sources), recipe.description] for recipe in recipes]
    say(table(("recipe", "sources", "description"), rows) + "\n")
    say(table(HEADERS, [_row(entry) for entry in entries], [entry.summary for entry in entries]))
    note("a dash: not stated for the whole dataset")
    note("next: datakit run RECIPE, or datakit catalog show DATASET")
    return 0


def show(name: str, /, *, json: Flag = False) -> int:
    """Show what is known about a public dataset: license, size, columns, traps, and how a recipe reads it.

    Every figure is from public documentation, which the last lines name. What that does not state is "not stated".

    Examples:
      datakit catalog show fineweb-2
      datakit catalog show fineweb-edu-10bt --json

    Parameters
    ----------
    name
        A dataset of `datakit catalog list`.
    json
        Print one JSON object.
    """
    from datakit.datasets.lookup import dataset

    entry = dataset(name)
    if json:
        say_json(asdict(entry))
        return 0
    say(wrapped(f"{entry.title}: {entry.summary}"))
    for title, text in _facts(entry):
        label = f"{title + ':':<12}" if title else "  - "
        say((label + wrapped(text, " " * len(label)).lstrip()).rstrip())
    for parameter, chosen in entry.parameters.items():
        rows = [[value, *_sizes(size)] for value, size in chosen.values.items()]
        say(f"\nparameter {parameter}, for example {chosen.example!r}")
        say(wrapped(f"{chosen.meaning} Form: {chosen.form}", "  "))
        if rows:
            say("\n" + table((parameter, "download", "documents", "tokens"), rows))
    say("\n" + table(("column", "holds"), [[column, meaning] for column, meaning in entry.columns.items()]))
    say("\nIn a recipe:\n\n" + "\n".join(_source_lines(entry)))
    note(f"next: datakit catalog recipe {name} > my-recipe.toml, then datakit plan my-recipe.toml")
    return 0


def recipe(name: str, /) -> int:
    """Print a recipe, so that you can save it and edit it: one that comes with datakit, or one for a public dataset.

    Examples:
      datakit catalog recipe demo > my-recipe.toml
      datakit catalog recipe finemath > my-recipe.toml

    Parameters
    ----------
    name
        A recipe or a dataset of `datakit catalog list`.
    """
    from pathlib import Path

    from datakit.datasets.lookup import dataset, dataset_names
    from datakit.recipe import catalog_names, load_recipe

    if name in catalog_names() or name not in dataset_names():
        say(Path(load_recipe(name).origin).read_text(encoding="utf-8").rstrip("\n"))
        return 0
    entry = dataset(name)
    lines = [f"# {entry.title}: {entry.summary}", f"# {entry.link}", f"# `datakit catalog show {name}` says more."]
    say("\n".join([*lines, f'name = "{name}"', "", *_source_lines(entry), FOLLOWING]))
    return 0


def _row(entry: Entry) -> list[Cell]:
    from datakit.datasets.entry import NOT_STATED

    license_ = entry.license.spdx or (NOT_STATED if entry.license.of_source is None else "other terms")
    return [entry.name, license_, *_sizes(entry.size), entry.access]


def _sizes(size: Size) -> list[Cell]:
    return [bytes_cell(size.bytes), count_text(size.documents), count_text(size.tokens)]


def _facts(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield titles and texts; the title of an item in a list is ""."""
    from datakit.datasets.entry import ACCESS, NOT_STATED

    size, license_ = entry.size, entry.license
    yield "link", entry.link
    yield "license", f"{license_.shown}, {license_.url}"
    yield from [("", license_.note)] * bool(license_.note)
    yield "access", f"{entry.access} ({ACCESS[entry.access]})"
    yield from [("", entry.obtain)] * bool(entry.obtain)
    yield "use", entry.use
    yield "download", NOT_STATED if size.bytes is None else f"{size.bytes:,} bytes ({bytes_text(size.bytes)})"
    yield "documents", NOT_STATED if size.documents is None else f"{size.documents:,}"
    yield "tokens", NOT_STATED if size.tokens is None else f"{size.tokens:,}"
    yield from [("", size.note)] * bool(size.note)
    yield "revision", entry.revision_rule
    yield "traps", ""
    for trap in entry.traps:
        yield "", trap
    yield "facts from", ""
    for reference in entry.references:
        yield "", reference


def _source_lines(entry: Entry) -> list[str]:
    """Return a [[sources]] table that reads a dataset, with the examples of its parameters."""
    from datakit.recipe_keys import toml

    lines = ["[[sources]]", f'catalog = "{entry.name}"']
    if entry.parameters:
        chosen = {name: parameter.example for name, parameter in entry.parameters.items()}
        lines.append(f"parameters = {toml(chosen)}")
    if "url" not in entry.source:
        lines.append('url = "PATH"               # the folder of your copy')
    return lines
