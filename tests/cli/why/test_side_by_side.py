"""The difference of two texts is complete, short, and cannot control the terminal."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as some

from datakit.cli.why import side_by_side as module
from datakit.cli.why.side_by_side import side_by_side, stretches

TEXTS = some.text(alphabet=" \nab種類é", max_size=80)


@given(left=TEXTS, right=TEXTS)
def test_stretches_add_up_to_both_texts(left: str, right: str) -> None:
    found = list(stretches(left, right))
    assert "".join(stretch.left for stretch in found) == left
    assert "".join(stretch.right for stretch in found) == right
    assert all((stretch.left == stretch.right) == stretch.equal for stretch in found)


def test_long_equal_stretches_are_shortened() -> None:
    words = " ".join(map(str, range(1000)))
    shown = side_by_side(("one", "two"), (f"a {words} b", f"A {words} b"), 80)
    assert "[... 989 equal words ...]" in shown
    assert len(shown.splitlines()) < 10
    assert "- a" in shown and "+ A" in shown
    assert "11  " in shown, "the words next to a difference are shown"


def test_rest_of_very_long_texts_is_counted() -> None:
    with patch.object(module, "COMPARED", 5):
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
