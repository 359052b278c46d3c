"""Defines the settings of the stage `rules`."""

from __future__ import annotations

from dataclasses import dataclass

from datakit.conditions.config import Rule, require_unique


@dataclass(frozen=True)
class Config:
    """The rules of a recipe, in order."""

    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        require_unique([rule.name for rule in self.rules], "rule")
