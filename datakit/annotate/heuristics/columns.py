"""Defines the columns of the annotator's table: counts, and ratios of two counts.

A ratio whose denominator is 0 is 0. Ratios are float64, so that they equal what `a / b` gives in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datakit.annotate.heuristics.kernels import counts
from datakit.annotate.heuristics.kernels.counts import (
    CHARACTERS,
    COUNT,
    DUPLICATE_5,
    FEWEST_DUPLICATE,
    FEWEST_TOP,
    MOST_DUPLICATE,
    MOST_TOP,
    NON_SYMBOL_WORDS,
    TOP_2,
    WORDS,
)


@dataclass(frozen=True)
class Column:
    """A column. count: the place of its count. over: the place of the count by which it is divided; -1 for a count.
    less: the place of a count that is subtracted from that one; -1 for none.
    """

    name: str
    count: int
    over: int = -1
    less: int = -1

    @property
    def field(self) -> pa.Field:
        """The column's field in the schema."""
        return pa.field(self.name, pa.uint64() if self.over < 0 else pa.float64(), nullable=False)

    def values(self, found: np.ndarray) -> pa.Array:
        """Return the column for N documents. found: int64 [N, counts], see `measure`."""
        numerator = found[:, self.count]
        if self.over < 0:
            return pa.array(numerator.astype(np.uint64))
        denominator = found[:, self.over] - (found[:, self.less] if self.less >= 0 else 0)
        return pa.array(np.where(denominator > 0, numerator / np.maximum(denominator, 1), 0.0))


COLUMNS: tuple[Column, ...] = (
    Column("characters", CHARACTERS),
    Column("words", WORDS),
    Column("non_symbol_words", NON_SYMBOL_WORDS),
    Column("mean_word_length", counts.WORD_CHARACTERS, NON_SYMBOL_WORDS),
    Column("longest_word", counts.LONGEST_WORD),
    Column("alphabetic_word_ratio", counts.ALPHABETIC_WORDS, WORDS),
    Column("hash_ratio", counts.HASHES, WORDS),
    Column("ellipsis_ratio", counts.ELLIPSES, WORDS),
    Column("lines", counts.LINES),
    Column("bullet_line_ratio", counts.BULLET_LINES, counts.LINES),
    Column("ellipsis_line_ratio", counts.ELLIPSIS_LINES, counts.LINES),
    Column("nonblank_lines", counts.NONBLANK_LINES),
    Column("terminal_line_ratio", counts.TERMINAL_LINES, counts.NONBLANK_LINES),
    Column("short_line_ratio", counts.SHORT_LINES, counts.NONBLANK_LINES),
    Column("newline_ratio", counts.NEWLINES, WORDS),
    Column("longest_line", counts.LONGEST_LINE),
    Column("third_longest_line", counts.THIRD_LINE),
    Column("paragraphs", counts.PARAGRAPHS),
    Column("duplicate_line_ratio", counts.DUPLICATE_LINES, counts.FILLED_LINES),
    Column("duplicate_line_character_ratio", counts.DUPLICATE_LINE_CHARACTERS, CHARACTERS),
    Column("duplicate_text_line_character_ratio", counts.DUPLICATE_NONBLANK_CHARACTERS, CHARACTERS, counts.NEWLINES),
    Column("duplicate_paragraph_ratio", counts.DUPLICATE_PARAGRAPHS, counts.PARAGRAPHS),
    Column("duplicate_paragraph_character_ratio", counts.DUPLICATE_PARAGRAPH_CHARACTERS, CHARACTERS),
    *(
        Column(f"top_{n}_gram_character_ratio", TOP_2 + n - FEWEST_TOP, CHARACTERS)
        for n in range(FEWEST_TOP, MOST_TOP + 1)
    ),
    *(
        Column(f"duplicate_{n}_gram_character_ratio", DUPLICATE_5 + n - FEWEST_DUPLICATE, CHARACTERS)
        for n in range(FEWEST_DUPLICATE, MOST_DUPLICATE + 1)
    ),
    Column("curly_brackets", counts.BRACES),
    Column("c4_long_word_lines", counts.C4_LONG_WORD_LINES),
    Column("c4_unterminated_lines", counts.C4_UNTERMINATED_LINES),
    Column("c4_short_lines", counts.C4_SHORT_LINES),
    Column("c4_lorem_ipsum_lines", counts.C4_LOREM_IPSUM_LINES),
    Column("c4_javascript_lines", counts.C4_JAVASCRIPT_LINES),
    Column("c4_curly_bracket_lines", counts.C4_BRACE_LINES),
    Column("c4_policy_lines", counts.C4_POLICY_LINES),
    Column("c4_kept_lines", counts.C4_KEPT_LINES),
    Column("c4_sentences", counts.C4_SENTENCES),
)


def columns(lists: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns of a table with these lists of stop words."""
    found = list(COLUMNS)
    for number, name in enumerate(lists):
        place = COUNT + 2 * number
        found += [Column(f"stop_words_{name}", place), Column(f"stop_word_ratio_{name}", place + 1, WORDS)]
    return tuple(found)
