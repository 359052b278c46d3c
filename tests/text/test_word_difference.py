"""The stretches of two texts add up to the texts, and long texts are compared only up to COMPARED words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from datakit.text.word_difference import COMPARED, stretches

TEXTS = some.text(alphabet=" \nab種類é", max_size=80)


@given(left=TEXTS, right=TEXTS)
def test_stretches_add_up_to_both_texts(left: str, right: str) -> None:
    found = list(stretches(left, right))
    assert "".join(stretch.left for stretch in found) == left
    assert "".join(stretch.right for stretch in found) == right
    assert all((stretch.left == stretch.right) == stretch.equal for stretch in found)


def test_words_beyond_the_limit_are_only_counted() -> None:
    found = list(stretches("word " * (COMPARED + 2), "word " * COMPARED))
    assert "3 more words, not compared" in found[-1].left
