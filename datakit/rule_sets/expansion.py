"""Replaces each table of a recipe that names a rule set by the rules of the set, as if they had been copied.

All that follows sees only rules: their names, such as `gopher_quality.few_words`, their counts, and the fingerprint,
which covers what the rules say, not the name of the set. So a set that changes is a changed recipe.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datakit.errors import RecipeError, suggestion
from datakit.rule_sets.config import SET, SetTable
from datakit.rule_sets.files import is_file, rule_set
from datakit.toml_config import convert, mistakes

NUMBER = re.compile(r"(\s*[\w.]+\s*(?:<=|>=|<>|!=|==|=|<|>)\s*)-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\s*")
NOT_IN_NAMES = re.compile(r"[^a-z0-9_.-]")
SHARES = ("lowest", "highest")
MOST_WHOLE = 1e15  # whole numbers below this are written without a fraction


def expanded(tables: Sequence[Any], base: Path, place: str) -> tuple[list[Any], list[str]]:
    """Return the tables with the rules of a set in place of each table that names one, and a message for each mistake
    in these. base: the folder that paths of sets are relative to. place: where the tables are, for messages.
    """
    found, messages, names = list[Any](), list[str](), Counter[str]()
    for table in tables:
        if not isinstance(table, dict) or SET not in table:
            found.append(table)
            continue
        here = f"{place}, rule set {table[SET]!r}"
        if wrong := mistakes(table, SetTable, here):
            messages += wrong
            continue
        used = convert(table, SetTable, here)
        names[prefix(used)] += 1
        try:
            found += rules_of(used, base)
        except RecipeError as error:
            messages.append(f"{here}: {error}")
    return found, messages + [
        f"{place}: {count} rule sets have the name {name!r}; set `name`, with which the names of the rules begin, in "
        "all but one of them"
        for name, count in names.items()
        if count > 1
    ]


def rules_of(used: SetTable, base: Path) -> list[dict[str, Any]]:
    """Return the rules for which a table with a set stands. Raises RecipeError if the set has no such rules, or if the
    table cannot be applied to them.
    """
    name = os.path.normpath(base / Path(used.set).expanduser()) if is_file(used.set) else used.set
    rules = rule_set(name, used.part)
    _check_names(used, [rule["name"] for rule in rules])
    kept = [rule for rule in rules if rule["name"] not in used.without]
    if not kept:
        raise RecipeError("`without` leaves out every rule; remove the table")
    found = [_used(rule, used) for rule in kept]
    return found if used.where is None else _restricted(found, used.where)


def prefix(used: SetTable) -> str:
    """Return the beginning of the names of the rules."""
    if used.name is not None:
        return used.name
    stem = Path(used.set).stem if is_file(used.set) else used.set
    return NOT_IN_NAMES.sub("_", (stem if used.part is None else f"{stem}.{used.part}").lower())


def _check_names(used: SetTable, known: Sequence[str]) -> None:
    for key, names in (("without", used.without), ("thresholds", used.thresholds)):
        for name in names:
            if name not in known:
                raise RecipeError(f"{key}: the set has no rule {name!r}; {suggestion(name, known)}")
    for name in used.thresholds:
        if name in used.without:
            raise RecipeError(f"{name!r} is in `without` and in `thresholds`; remove it from one of them")


def _used(rule: dict[str, Any], used: SetTable) -> dict[str, Any]:
    """Return a rule of the set as a rule of the recipe."""
    if SET in rule:
        raise RecipeError(f"the rule {rule['name']!r} names a set; a set holds rules only")
    own = {**rule, "name": f"{prefix(used)}.{rule['name']}"}
    if rule["name"] in used.thresholds:
        own |= _with_threshold(rule, used.thresholds[rule["name"]])
    if used.sources and "sources" in rule:
        raise RecipeError(f"`sources` is set here and in the set's rule {rule['name']!r}; remove it from one of them")
    return {**own, "sources": list(used.sources)} if used.sources else own


def _with_threshold(rule: dict[str, Any], threshold: float) -> dict[str, Any]:
    """Return the key of the rule that holds its threshold, with another threshold."""
    if not math.isfinite(threshold):
        raise RecipeError(f"thresholds: {rule['name']} is {threshold}; it must be a finite number")
    for share in SHARES:
        if share in rule:
            return {share: threshold}
    where = rule.get("where")
    found = NUMBER.fullmatch(where) if isinstance(where, str) else None
    if found is None:
        raise RecipeError(
            f"thresholds: the rule {rule['name']!r} does not compare one number with a threshold: {where!r}; list it "
            "in `without`, and write a rule of your own"
        )
    whole = threshold.is_integer() and abs(threshold) < MOST_WHOLE
    return {"where": f"{found[1]}{int(threshold) if whole else threshold!r}"}


def _restricted(rules: Sequence[dict[str, Any]], restriction: str) -> list[dict[str, Any]]:
    """Return the rules, each of which applies only where the restriction is true, too, even if it has `missing = true`
    and the restriction is null. Each expression is checked by itself, because `a) OR (b` is one only within
    parentheses.
    """
    from datakit.sql.database import open_database  # opens DuckDB, which few recipes need here
    from datakit.sql.expression import column_paths

    if not restriction.strip():
        raise RecipeError(f"where is {restriction!r}, which is no condition; leave it out")
    database, found = open_database(), list[dict[str, Any]]()
    column_paths(database, restriction, "where")
    for rule in rules:
        where = rule.get("where", "")
        if not isinstance(where, str):
            raise RecipeError(f"rule {rule['name']!r}: where is {where!r}, not a SQL expression")
        if where:
            column_paths(database, where, f"rule {rule['name']!r}, where")
        first = _in_parentheses(restriction)
        parts = [f"({first} IS TRUE)" if rule.get("missing") else first, *([_in_parentheses(where)] if where else [])]
        found.append({**rule, "where": " AND ".join(parts)})
    return found


def _in_parentheses(sql: str) -> str:
    return f"({sql}\n)" if "--" in sql else f"({sql})"  # a comment ends with the line
