"""Defines the settings of a search for passages that occur several times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from datakit.errors import RecipeError, suggestion
from datakit.toml_config import key

LINE, PARAGRAPH, SUBSTRING = "line", "paragraph", "substring"
UNITS = (LINE, PARAGRAPH, SUBSTRING)
DATASET, DOCUMENT = "dataset", "document"
SCOPES = (DATASET, DOCUMENT)
WHITE_SPACE, CASE, DIGITS, PUNCTUATION = "white_space", "case", "digits", "punctuation"
DIFFERENCES = (WHITE_SPACE, CASE, DIGITS, PUNCTUATION)
MOST_COPIES = 1 << 40
LEAST_BYTES = 100  # the default of `min_bytes` of lines and paragraphs
SUBSTRING_BYTES = (32, 1 << 15)  # the least and the most `min_bytes` of substrings
MOST_SEARCHES = 64  # the number of a search is stored in a byte


@dataclass(frozen=True)
class SearchConfig:
    """The settings of one search, which the recipe names in the header of its table."""

    unit: Annotated[
        str,
        key(
            "What is compared: each `line`, each `paragraph` between blank lines, or each `substring` of `min_bytes` "
            "bytes, wherever it begins.",
            PARAGRAPH, choices=UNITS,
        ),
    ]  # fmt: skip
    within: Annotated[
        str, key("Where copies are searched for: in the whole `dataset`, or in each `document`.", DOCUMENT, SCOPES)
    ] = DATASET
    min_bytes: Annotated[
        int | None,
        key(
            "Shorter passages are never marked; the number of bytes, without the differences to ignore; 100 if "
            "omitted. Required for substrings: 32 to 32768.",
            200,
        ),
    ] = None
    min_words: Annotated[
        int, key("Passages with fewer words, which white space separates, are never marked.", 10)
    ] = 0  # fmt: skip
    ignore: Annotated[
        tuple[str, ...],
        key("Differences between copies that do not count: `white_space`, `case`, `digits`, `punctuation`.",
            ["white_space", "case"]),
    ] = (WHITE_SPACE,)  # fmt: skip
    keep: Annotated[int, key("How many copies stay unmarked: the first ones, in the order of the dataset.", 0)] = 1
    above: Annotated[
        int | None, key("Copies are marked only of passages with more copies than this; `keep` if omitted.", 5)
    ] = None

    def __post_init__(self) -> None:
        for setting, value, known in (("unit", self.unit, UNITS), ("within", self.within, SCOPES)):
            if value not in known:
                raise RecipeError(f"unknown {setting} {value!r}; {suggestion(value, known)}")
        for one in self.ignore:
            if one not in DIFFERENCES:
                raise RecipeError(f"ignore: unknown difference {one!r}; {suggestion(one, DIFFERENCES)}")
        if len(set(self.ignore)) < len(self.ignore):
            raise RecipeError("ignore lists a difference twice; remove one of them")
        if self.unit == SUBSTRING:
            self._check_substrings()
        elif self.min_bytes is None:
            object.__setattr__(self, "min_bytes", LEAST_BYTES)  # frozen; every default is part of the fingerprint
        if self.least < 1 or self.min_words < 0:
            raise RecipeError("min_bytes must be at least 1, and min_words at least 0")
        if not 0 <= self.keep <= MOST_COPIES:
            raise RecipeError(f"keep is {self.keep}; it must be at least 0")
        if self.above is not None and not max(1, self.keep) <= self.above <= MOST_COPIES:
            raise RecipeError(f"above is {self.above}; it must be at least 1, and at least keep ({self.keep})")
        if not self.keep and self.above is None:
            raise RecipeError(
                "keep = 0 marks every copy, even of passages that occur once; set above, for example to 1"
            )

    def _check_substrings(self) -> None:
        """Raise RecipeError if a setting makes no sense for substrings."""
        low, high = SUBSTRING_BYTES
        if self.min_bytes is None:
            raise RecipeError(f'min_bytes is missing; unit = "{SUBSTRING}" needs it, for example min_bytes = 200')
        if not low <= self.min_bytes <= high:
            raise RecipeError(f'min_bytes is {self.min_bytes}; with unit = "{SUBSTRING}", it must be {low} to {high}')
        if self.ignore:
            raise RecipeError(f'substrings are compared byte by byte; with unit = "{SUBSTRING}", set ignore = []')
        if self.min_words:
            raise RecipeError(f'substrings have no words; with unit = "{SUBSTRING}", remove min_words')
        if self.keep != 1 or self.above is not None:
            raise RecipeError(f'with unit = "{SUBSTRING}", the first copy stays unmarked; remove keep and above')

    @property
    def least(self) -> int:
        """The number of bytes of the shortest passage to mark."""
        return LEAST_BYTES if self.min_bytes is None else self.min_bytes

    @property
    def threshold(self) -> int:
        """Copies are marked only of passages with more copies than this."""
        return self.keep if self.above is None else self.above
