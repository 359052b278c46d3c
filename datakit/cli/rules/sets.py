"""Implements `datakit rules sets`, which lists the rule sets that come with datakit, and prints a rule set as TOML for
`datakit rules show`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datakit.cli.console import note, say, say_json, wrapped
from datakit.cli.parameters import Flag
from datakit.errors import UsageError, counted


def list_sets(*, json: Flag = False) -> int:
    """List the rule sets that come with datakit.

    A recipe names one with `set` in place of a rule's `name` and `where`.

    Examples:
      datakit rules sets
      datakit rules show gopher_quality

    Parameters
    ----------
    json
        Print one JSON object, with the names of the rules of each part.
    """
    from datakit.rule_sets.files import RULES, about, parts_of, rule_set_names

    sets = {name: parts_of(name) for name in rule_set_names()}
    if json:
        names = {
            name: {part: [rule["name"] for rule in rules] for part, rules in parts.items()}
            for name, parts in sets.items()
        }
        say_json({"sets": names})
        return 0
    for name, parts in sets.items():
        count = counted(len(parts[RULES]), "rule") if RULES in parts else f"parts {', '.join(parts)}"
        say(wrapped(f"{name}: {count}", more="  "))
        say(wrapped(about(name), "  "))
    note("next: datakit rules show NAME, which prints the rules")
    return 0


def is_set(name: str) -> bool:
    """Return True if the argument of `datakit rules show` is a rule set, not a directory."""
    from datakit.rule_sets.files import is_file, rule_set_names

    return not os.path.isdir(name) and (is_file(name) or name in rule_set_names())


def print_set(name: str, part: str | None, *, json: bool) -> None:
    """Print the rules of a set as [[rules]] tables that a recipe can hold, with the names that they have in a recipe
    that names the set. Raises RecipeError for an unknown part, and for a file that is no rule set.
    """
    from datakit.rule_sets.config import SetTable
    from datakit.rule_sets.expansion import rules_of

    rules = rules_of(SetTable(set=name, part=part), Path.cwd())
    if json:
        return say_json({"rules": rules})
    from datakit.recipe_keys import toml

    say(f"# The rule set {name}{f', part {part}' if part else ''}. The recipe needs:")
    for line in _needs(rules):
        say(f"#   {line}")
    for rule in rules:
        say("\n[[rules]]\n" + "\n".join(f"{key} = {toml(value)}" for key, value in rule.items()))
    chosen = f'set = "{name}"' + (f' and part = "{part}"' if part else "")
    return note(f"in a recipe, a [[rules]] table with {chosen} stands for these rules")


def refuse_options(options: dict[str, Any]) -> None:
    """Raise UsageError if an option of `datakit rules show` is given that has no effect on a rule set."""
    for name, value in options.items():
        if value:
            raise UsageError(f"--{name} has no effect on a rule set; leave it out, or name a dataset")


def _needs(rules: Sequence[dict[str, Any]]) -> list[str]:
    """Return the annotators that a recipe with these rules needs. Raises RecipeError if a rule is not valid."""
    from datakit.conditions.config import Rule
    from datakit.conditions.expressions import Conditions
    from datakit.pipeline.recipe_checks.annotator_columns import HEURISTICS, listed_stop_words
    from datakit.toml_config import decoded

    conditions = Conditions([decoded(rule, Rule, f"rule {rule['name']!r}") for rule in rules], ())
    found = []
    for name in conditions.annotators:
        lists = listed_stop_words(conditions.wanted[name]) if name == HEURISTICS else []
        found.append(f"[annotate.{name}]" + (f" with stop_words = {lists}".replace("'", '"') if lists else ""))
    return found or ["no annotator"]
