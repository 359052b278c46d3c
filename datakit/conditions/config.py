"""Defines the settings of a rule: the documents to which it applies, and its action."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from datakit.errors import RecipeError, suggestion
from datakit.toml_config import key

DROP, KEEP = "drop", "keep"
ACTIONS = (DROP, KEEP)
NAME_RULE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
# the names under which expressions find a document's own columns, its source, and what edits did to its text
DOCUMENT, SOURCE, EDITED = "document", "source", "edited"


@dataclass(frozen=True)
class Rule:
    """A rule. Of the rules that apply to a document, the first one decides.

    A rule with `lowest` or `highest` applies to a share of the documents for which `where` is true: those with the
    smallest or the largest values of `by`. Equal values are ordered by the documents' ids.
    """

    name: Annotated[str, key("The rule's name, under which it is counted; unique in the recipe.", "short")]
    where: Annotated[
        str,
        key("A SQL expression, in DuckDB's dialect, over attributes (`language.label`), columns of the document "
            "(`document.url`) and `source`; the rule applies where it is true.", "language.score < 0.65"),
    ] = ""  # fmt: skip
    action: Annotated[
        str, key("`drop` removes the document; `keep` protects it from the rules that follow.", KEEP, ACTIONS)
    ] = DROP  # fmt: skip
    lowest: Annotated[
        float | None,
        key("Of the documents for which `where` is true, apply the rule only to this share, those with the lowest "
            "values of `by`.", 0.1),
    ] = None  # fmt: skip
    highest: Annotated[float | None, key("Like `lowest`, but for those with the highest values.", 0.1)] = None
    by: Annotated[
        str, key("The number that `lowest` or `highest` refers to, as a SQL expression.", "language.score")
    ] = ""  # fmt: skip
    sources: Annotated[
        tuple[str, ...], key("The sources that the rule reads; all if omitted.", ["web"])
    ] = ()  # fmt: skip
    missing: Annotated[
        bool,
        key("Whether the rule applies to documents for which `where` or `by` is null, for example because an annotator "
            "has no attributes for them.", True),
    ] = False  # fmt: skip

    def __post_init__(self) -> None:
        if not NAME_RULE.fullmatch(self.name):
            raise RecipeError(
                f"name is {self.name!r}; use lower-case letters, digits, '_', '.' and '-', starting with a letter or a "
                "digit"
            )
        if self.action not in ACTIONS:
            raise RecipeError(f"action is {self.action!r}; {suggestion(self.action, ACTIONS)}")
        if self.lowest is not None and self.highest is not None:
            raise RecipeError("lowest and highest are both set; write two rules")
        for name, share in (("lowest", self.lowest), ("highest", self.highest)):
            if share is not None and not 0 < share < 1:
                raise RecipeError(f"{name} is {share}; it must be a share above 0 and below 1")
        if self.ranks and not self.by:
            name = "lowest" if self.highest is None else "highest"
            raise RecipeError(f"{name} is set, but by is not; set `by` to the number that decides")
        if self.by and not self.ranks:
            raise RecipeError(f"by is {self.by!r}, but has no effect without lowest or highest; set one, or remove it")
        if not self.where and not self.ranks:
            raise RecipeError("the rule has no condition; set where, or lowest or highest with by")

    @property
    def ranks(self) -> bool:
        """True if the rule applies to a share of documents."""
        return self.lowest is not None or self.highest is not None

    def chosen(self, population: int) -> int:
        """Return how many of `population` documents the share is, rounded down. The share counts as the decimal number
        that the recipe shows, so 0.29 of 100 is 29, although the nearest float is smaller.
        """
        share = self.lowest if self.lowest is not None else self.highest
        return int(Fraction(str(share)) * population)


def require_unique(names: Sequence[str], what: str) -> None:
    """Raise RecipeError if a name occurs twice. what: a rule or a bucket."""
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(f"two {what}s are named {name!r}; give each a unique name")
