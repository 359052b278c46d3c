"""Finds the mistakes in single tables of a recipe: unknown, missing and moved keys, values of the wrong type, and names
that an annotator cannot have. The checks in `recipe_checks`, which compare tables with each other, follow if there are
no such mistakes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from datakit.annotate import stage as annotate
from datakit.annotate.tables import TABLES
from datakit.annotate.user.config import TABLE_NAME
from datakit.conditions.config import DOCUMENT, EDITED, SOURCE
from datakit.consolidate import stage as consolidate
from datakit.pipeline.configuration.tables import NAMED, Table, without, written_tables
from datakit.select import stage as select
from datakit.toml_config import mistakes, names_of, unknown_keys

MOVED = {(consolidate.NAME, "drop"): f"[{select.NAME}]"}  # keys that earlier versions read in another table


def table_mistakes(document: Mapping[str, Any], place: str) -> list[str]:
    """Return a message for each mistake in the stage tables of a recipe. This function is called only if other mistakes
    have already been found in the recipe.
    """
    tables = list(written_tables(document, place))
    return [text for one in tables for text in mistakes_of(one)]


def mistakes_of(table: Table) -> list[str]:
    """Return a message for each mistake in a table. The message for a key that has moved names its new table."""
    if not isinstance(table.values, Mapping):
        return [f"{table.place} must be a table"]
    if table.rules and (found := [message for rule in table.rules for message in mistakes_of(rule)]):
        return found
    moved = {key: home for (stage, key), home in MOVED.items() if stage == table.stage and key in table.values}
    found = [f"{table.place}: the key {key!r} is now in the table {home}; move it there" for key, home in moved.items()]
    found += mistakes(without(table.values, moved), table.kind, table.place, other_keys=table.other_keys)
    found += [message for one in table.subtables for message in _subtable_mistakes(one)]
    named = Counter(one.subtable_name for one in table.subtables if one.named)
    found += [f"{table.place}: two annotators have the name {name!r}" for name, count in named.items() if count > 1]
    return found + _mixed_forms(table)


def _mixed_forms(table: Table) -> list[str]:
    """Return a message for each kind of classifier whose table holds both the keys of one and named ones."""
    unnamed = {one.annotator: one for one in table.subtables if one.annotator and not one.named}
    named = {one.annotator: one for one in table.subtables if one.annotator and one.named}
    return [
        f"{one.place} holds keys of a classifier ({', '.join(one.values)}) beside the table of a named one "
        f"({named[kind].subtable_name}); move the keys into a table [{annotate.NAME}.{kind}.NAME], and write NAME in "
        f"place of {kind} in expressions"
        for kind, one in unnamed.items()
        if kind in named
    ]


def _subtable_mistakes(table: Table) -> list[str]:
    """Return a message for each mistake in an annotator's table, and for each unknown key in its tables of files."""
    found, about = mistakes_of(table), TABLES.get(table.annotator)
    if about is None:
        return found + _name_mistakes(table)
    files = table.values.get(about.files) if about.files and isinstance(table.values, Mapping) else None
    for name, values in files.items() if isinstance(files, Mapping) else ():
        if isinstance(values, Mapping):
            place = f"{table.place.removesuffix(']')}.{about.files}.{name}]"
            found += unknown_keys(values, names_of(about.file_kind), place)
    return found + _name_mistakes(table)


def _name_mistakes(table: Table) -> list[str]:
    """Return a message if an annotator that the recipe names has a name that a table of attributes cannot have."""
    name = table.subtable_name
    parents = (*NAMED, *(one for one, about in TABLES.items() if about.nameable))
    whole = table.place.endswith(tuple(f"[{annotate.NAME}.{one}.{name}]" for one in parents))  # a name may contain dots
    keys = names_of(table.kind) if table.annotator else ()  # a table with such a name is likely a wrong value
    taken = (*TABLES, DOCUMENT, SOURCE, EDITED, *keys)
    if not table.named or (whole and TABLE_NAME.fullmatch(name) and name not in taken):
        return []
    reason = "a built-in annotator has this name" if name in TABLES else "use letters a-z, digits and '_'"
    reason = "expressions of rules give this name another meaning" if name in (DOCUMENT, SOURCE, EDITED) else reason
    reason = "it is a key of the classifier" if name in keys else reason
    return [f"{table.place}: {name!r} cannot be the name of a table of attributes: {reason}"]
