"""Defines the settings of the annotator `heuristics`. Kernels are loaded by `annotator` only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from datakit.annotate.annotator import Annotator
from datakit.annotate.heuristics.stop_word_lists import GOPHER, check_lists
from datakit.errors import RecipeError
from datakit.toml_config import key

LONGEST = 1_000_000  # the greatest value of a limit


@dataclass(frozen=True)
class HeuristicsConfig:
    """The settings of the annotator `heuristics`."""

    VERSION: ClassVar[int] = 1

    stop_words: Annotated[
        tuple[str, ...],
        key("Lists of stop words, each of which has two columns: `gopher`, and FineWeb-2's such as `deu_Latn`.",
            ["gopher", "deu_Latn"]),
    ] = (GOPHER,)  # fmt: skip
    short_line: Annotated[int, key("A line with at most this many characters is short (FineWeb).", 40)] = 30
    fewest_words: Annotated[int, key("C4 drops a line with fewer words.", 5)] = 3
    longest_word: Annotated[int, key("C4 drops a line with a word of more characters.", 500)] = 1000

    def __post_init__(self) -> None:
        check_lists(self.stop_words)
        for name in ("short_line", "fewest_words", "longest_word"):
            if not 0 <= getattr(self, name) <= LONGEST:
                raise RecipeError(f"{name} is {getattr(self, name)}; it must be from 0 to {LONGEST:,}")

    def annotator(self) -> Annotator:
        """Return the annotator with its kernels loaded."""
        from datakit.annotate.heuristics.annotator import Heuristics
        from datakit.annotate.heuristics.kernels.measure import Limits
        from datakit.annotate.warming import warmed

        limits = Limits(self.short_line, self.fewest_words, self.longest_word)
        return warmed(Heuristics(self.VERSION, limits, self.stop_words))
