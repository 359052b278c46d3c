"""Reads rule sets: those of this folder (the verdicts of Gopher, C4, mC4, FineWeb and FineWeb-2 over the numbers of the
annotator `heuristics`), and a user's own.

A rule set is a TOML file whose arrays of tables, called parts, hold rules with the keys of `[[rules]]`. A set with one
part calls it `rules`; `fineweb2` has one for each language and script, such as `deu_Latn`. In the sets of this folder,
every rule drops the documents for which a number is beyond a threshold. They are in the order of the original, so the
first rule that applies is the reason that the original gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from datakit.errors import RecipeError, suggestion
from datakit.toml_config import read_toml

FOLDER = Path(__file__).parent
RULES = "rules"  # the part of a set that has only one
FILE_SUFFIX = ".toml"

Rules = Sequence[dict[str, Any]]  # tables of rules, as a TOML file holds them


def rule_set_names() -> tuple[str, ...]:
    """Return the names of the sets that come with datakit, in alphabetical order."""
    return tuple(sorted(path.stem for path in FOLDER.glob(f"*{FILE_SUFFIX}")))


def is_file(name: str) -> bool:
    """Return True if the name of a set is the path of a user's file."""
    return name.endswith(FILE_SUFFIX)


def path_of(name: str) -> Path:
    """Return the path of a set's file, which a user gives as a path or as the name of a set that comes with datakit.
    Raises RecipeError for an unknown name.
    """
    if is_file(name):
        return Path(name)
    if name not in rule_set_names():
        raise RecipeError(
            f"unknown rule set {name!r} (one of your own is a path that ends with {FILE_SUFFIX}); "
            f"{suggestion(name, rule_set_names())}"
        )
    return FOLDER / f"{name}{FILE_SUFFIX}"


def about(name: str) -> str:
    """Return what the comment at the beginning of a set's file says."""
    lines = path_of(name).read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("# ") for line in takewhile(lambda line: line.startswith("#"), lines))


def parts_of(name: str) -> Mapping[str, Rules]:
    """Return the rules of each part of a set. Raises RecipeError for a set that does not exist, and for a file that
    holds anything else.
    """
    path = path_of(name)
    document = read_toml(path, "give the path of a rule set, relative to the recipe")
    for part, rules in document.items():
        if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
            raise RecipeError(f"{path}: {part!r} is not an array of tables; a rule set holds [[{RULES}]] tables only")
        for number, rule in enumerate(rules, start=1):
            if not isinstance(rule.get("name"), str):
                raise RecipeError(f"{path}, [[{part}]] number {number}: the rule has no name; set `name`")
    for part in document or (RULES,):
        if not document.get(part):
            raise RecipeError(f"{path} has no rules; add [[{part}]] tables to it")
    return document


def rule_set(name: str, part: str | None = None) -> Rules:
    """Return the rules of a set, or of one of its parts. Raises RecipeError for an unknown set or part, and if the set
    has several parts but none is given.
    """
    parts = parts_of(name)
    if part is None and [*parts] == [RULES]:
        return parts[RULES]
    if part is None:
        raise RecipeError(f"the rule set {name!r} has parts; set `part` to one of {', '.join(parts)}")
    if part not in parts:
        raise RecipeError(f"the rule set {name!r} has no part {part!r}; {suggestion(part, parts)}")
    return parts[part]
