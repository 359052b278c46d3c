"""Defines the keys of a table of a recipe that names a rule set in place of a rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from datakit.toml_config import key

SET = "set"


@dataclass(frozen=True)
class SetKeys:
    """The keys that only a table with a rule set has."""

    set: Annotated[
        str,
        key("Stands for all rules of a rule set: one that comes with datakit (`datakit rules sets` lists them), or a "
            "TOML file, relative to the recipe's file. Beside it, `name` is optional and begins the names of the rules "
            "(by default the set's name), `where` and `sources` restrict all of them, and of the other keys, only "
            "those below are allowed.", "gopher_quality"),
    ] = ""  # fmt: skip
    part: Annotated[
        str | None, key("The part of a rule set that has several, such as `fineweb2`.", "deu_Latn")
    ] = None  # fmt: skip
    without: Annotated[
        tuple[str, ...], key("The rules of the set to leave out, by their names in the set.", ["many_words"])
    ] = ()  # fmt: skip
    thresholds: Annotated[
        dict[str, float],
        key("Other thresholds, by the names of the set's rules: the number with which a rule compares, or the share of "
            "a rule with `lowest` or `highest`.", {"few_words": 30}),
    ] = field(default_factory=dict)  # fmt: skip


@dataclass(frozen=True)
class SetTable(SetKeys):
    """A table with a rule set. The fields below have a similar meaning in a rule; None stands for the default."""

    name: str | None = None
    where: str | None = None
    sources: tuple[str, ...] = ()
