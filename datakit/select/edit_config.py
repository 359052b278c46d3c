"""Defines the settings of an edit: which spans of which sources are masked or cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from datakit.errors import RecipeError, suggestion
from datakit.toml_config import key

MASK, CUT = "mask", "cut"
ACTIONS = (MASK, CUT)
PASSAGES = "passages"  # the stage whose columns of spans edits may name, besides those of annotators


@dataclass(frozen=True)
class EditConfig:
    """The settings of one edit, which the recipe names in the header of its table."""

    spans: Annotated[
        str,
        key("The spans to edit: an annotator of the recipe and its column of spans, or `passages` and a search, with a "
            "dot between them.", "personal.spans"),
    ]  # fmt: skip
    action: Annotated[
        str, key("`mask` puts `replacement` in the place of each span; `cut` removes it.", MASK, choices=ACTIONS)
    ]
    replacement: Annotated[str, key("The text that replaces each span. Only for `mask`.", "<EMAIL>")] = ""
    kinds: Annotated[
        tuple[str, ...] | None, key("The kinds of spans to edit; all if omitted.", ["email", "ipv4"])
    ] = None  # fmt: skip
    sources: Annotated[
        tuple[str, ...] | None, key("The sources whose texts are edited; all if omitted.", ["novels"])
    ] = None  # fmt: skip

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise RecipeError(f"unknown action {self.action!r}; {suggestion(self.action, ACTIONS)}")
        self._check_replacement()
        table, dot, column = self.spans.partition(".")
        if not (table and dot and column):
            raise RecipeError(
                f'spans is {self.spans!r}; name an annotator and its column, as in "personal.spans", '
                'or a search, as in "passages.lines"'
            )
        _check_names("kinds", self.kinds)
        _check_names("sources", self.sources)

    def _check_replacement(self) -> None:
        if self.action == MASK and not self.replacement:
            raise RecipeError('the action "mask" needs a replacement; give one, or use "cut" to remove the spans')
        if self.action == CUT and self.replacement:
            raise RecipeError('a replacement has no effect with the action "cut"; remove it, or use "mask"')
        if "\0" in self.replacement:
            raise RecipeError("replacement contains NUL, which datakit removes from every text; remove it")

    @property
    def table(self) -> str:
        """The name of the annotator, or PASSAGES."""
        return self.spans.partition(".")[0]

    @property
    def column(self) -> str:
        """The name of the column of spans."""
        return self.spans.partition(".")[2]

    def applies_to(self, source: str) -> bool:
        """Return True if the texts of this source are edited."""
        return self.sources is None or source in self.sources


def _check_names(setting: str, names: tuple[str, ...] | None) -> None:
    if names is None:
        return
    if not names:
        raise RecipeError(f"{setting} is empty; name at least one, or remove the setting for all of them")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RecipeError(f"{setting}: {twice!r} is listed twice; remove one of them")
