"""The pairs of a report are spread over all similarities, and long texts are cut."""

from __future__ import annotations

from datakit.report.pairs import MOST_CHARACTERS, _limited, _spread
from datakit.text.word_difference import stretches


def test_chosen_values_include_both_ends() -> None:
    chosen = _spread(list(range(1000)), 10)
    assert (chosen[0], chosen[-1], len(chosen)) == (0, 999, 10)
    assert _spread([1, 2], 10) == [1, 2]


def test_short_texts_are_shown_in_full() -> None:
    shown = list(_limited(stretches("one two three", "one 2 three")))
    assert "".join(left for _, left, _ in shown) == "one two three"
    assert "".join(right for _, _, right in shown) == "one 2 three"


def test_long_differences_are_cut() -> None:
    left, right = ("".join(f" {kind}{number}" for number in range(MOST_CHARACTERS)) for kind in "ab")
    shown = list(_limited(stretches(left, right)))
    assert all(len(text) <= MOST_CHARACTERS for _, *texts in shown for text in texts)
    assert "the rest is not shown" in shown[-1][1]
