"""Defines the settings of a document bucket: its name, and the condition for documents to belong to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from datakit.conditions.config import KEEP, Rule
from datakit.errors import RecipeError
from datakit.storage.selection.buckets import REST
from datakit.toml_config import key

NAME_RULE = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")  # without dots, because mixtures name `source.bucket`


@dataclass(frozen=True)
class Bucket:
    """A document bucket. The first bucket of a recipe that applies to a document gets it."""

    name: Annotated[str, key("The bucket's name, unique in the recipe; mixtures name `source.bucket`.", "high")]
    where: Annotated[
        str, key("A SQL expression, as in a rule; the bucket applies where it is true.", "language.score > 0.9")
    ] = ""  # fmt: skip
    lowest: Annotated[
        float | None,
        key("Of the documents that stay and for which `where` is true, this share with the lowest values of `by`.",
            0.1),
    ] = None  # fmt: skip
    highest: Annotated[float | None, key("Like `lowest`, but for those with the highest values.", 0.1)] = None
    by: Annotated[
        str, key("The number that `lowest` or `highest` refers to, as a SQL expression.", "language.score")
    ] = ""  # fmt: skip
    sources: Annotated[
        tuple[str, ...], key("The sources that are divided into buckets; all if omitted.", ["web"])
    ] = ()  # fmt: skip
    missing: Annotated[
        bool, key("Whether the bucket gets documents for which `where` or `by` is null.", True)
    ] = False  # fmt: skip

    def __post_init__(self) -> None:
        if not NAME_RULE.fullmatch(self.name):
            raise RecipeError(
                f"name is {self.name!r}; use lower-case letters, digits, '_' and '-', starting with a letter or a digit"
            )
        if self.name == REST:
            raise RecipeError(f"name is {REST!r}, which is the bucket of all other documents; choose another name")
        self.as_rule()

    def as_rule(self) -> Rule:
        """Return a rule that applies to the same documents. Raises RecipeError if the settings contradict each
        other.
        """
        return Rule(
            self.name, self.where, KEEP, self.lowest, self.highest, self.by, self.sources, self.missing
        )  # fmt: skip
