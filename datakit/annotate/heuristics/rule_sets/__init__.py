"""Reads rule sets: the verdicts of Gopher, C4, FineWeb and FineWeb-2 as named expressions over the heuristics' numbers.

Each file is a TOML document whose tables are lists of rules. A set with one list calls it `rules`; `fineweb2` has one
for each language and script, such as `deu_Latn`. A rule drops a document where its expression is true. Rules are in the
order of the original, so the first that is true is the reason.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

from datakit.errors import RecipeError, suggestion

FOLDER = Path(__file__).parent
RULES = "rules"


@dataclass(frozen=True)
class Rule:
    """A rule. where: the expression that is true for documents to drop."""

    name: str
    where: str


def rule_set_names() -> tuple[str, ...]:
    """Return the names of all rule sets, in alphabetical order."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@functools.cache
def rule_lists(name: str) -> dict[str, tuple[Rule, ...]]:
    """Return the lists of a rule set by name. Raises RecipeError for an unknown set."""
    if name not in rule_set_names():
        raise RecipeError(f"unknown rule set {name!r}; {suggestion(name, rule_set_names())}")
    lists = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return {one: tuple(Rule(**rule) for rule in rules) for one, rules in lists.items()}


def rule_set(name: str, part: str = RULES) -> tuple[Rule, ...]:
    """Return the rules of a set, or of one of its lists. Raises RecipeError for an unknown set or list."""
    lists = rule_lists(name)
    if part not in lists:
        raise RecipeError(f"the rule set {name!r} has no list {part!r}; {suggestion(part, lists)}")
    return lists[part]
