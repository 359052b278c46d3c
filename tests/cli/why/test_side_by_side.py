"""The difference of two texts is short, and cannot control the terminal."""

from __future__ import annotations

from unittest.mock import patch

from datakit.cli.why.side_by_side import side_by_side
from datakit.text import word_difference
from datakit.text.word_difference import stretches


def test_long_equal_stretches_are_shortened() -> None:
    words = " ".join(map(str, range(1000)))
    shown = side_by_side(("one", "two"), (f"a {words} b", f"A {words} b"), 80)
    assert "[... 989 equal words ...]" in shown
    assert len(shown.splitlines()) < 10
    assert "- a" in shown and "+ A" in shown
    assert "11  " in shown, "the words next to a difference are shown"


def test_rest_of_very_long_texts_is_counted() -> None:
    with patch.object(word_difference, "COMPARED", 5):
        shown = side_by_side(("one", "two"), ("a b c d e f g", "a b c d e"), 100)
    assert "[... 2 more words, not compared ...]" in shown


def test_texts_without_spaces_are_compared_by_character() -> None:
    found = list(stretches("これは本です", "これは犬です"))
    assert [(stretch.left, stretch.right) for stretch in found if not stretch.equal] == [("本", "犬")]
    shown = side_by_side(("one", "two"), ("語" * 100 + "x", "語" * 100 + "y"), 80)
    assert "- x" in shown and "+ y" in shown


def test_control_characters_are_pictured() -> None:
    shown = side_by_side(("one", "two"), ("a \x1b[31m [bold]b[/bold]", "a \x07 c"), 80)
    assert "\x1b" not in shown and "\x07" not in shown
    assert "[bold]b[/bold]" in shown
