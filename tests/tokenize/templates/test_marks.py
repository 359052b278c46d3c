"""Marks leave a text, and spans move with it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from datakit.tokenize.templates.marks import BEGIN, END, MARK, OTHER, OWN, unmarked
from datakit.tokenize.templates.special_strings import SpecialStrings

SPECIAL = SpecialStrings(["<e>", "<e><e>", "</s>"])
texts = st.lists(st.sampled_from(["<e>", "</s>", "a", "漢", "", BEGIN, END, OWN, OTHER]), max_size=12).map("".join)


@given(texts, st.data())
def test_spans_lose_the_marks(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, len(text)))
    made = unmarked(text)
    ((first, last),) = made.moved([(start, stop)])
    assert made.text == MARK.sub("", text)
    assert made.text[first:last] == MARK.sub("", text[start:stop])


def test_separated_marks_quote_nothing() -> None:
    made = unmarked(f"{BEGIN}<e{OWN}</s>{OTHER}{END}")  # the template has cut the content
    assert (made.text, made.own, made.quoted) == ("<e</s>", [(2, 6)], [])


def test_adjacent_parts_of_a_template_are_one() -> None:
    made = unmarked(f"{OWN}<{OTHER}{OWN}e>{OTHER}{BEGIN}<e>{END}{OWN}x{OTHER}a{OWN}b{OTHER}")
    assert made.own == [(0, 3), (6, 7), (8, 9)] and made.quoted == [(3, 6)]


def test_longest_string_counts() -> None:
    assert SPECIAL.places("a<e><e></s>") == [(1, 7), (7, 11)]
    assert SPECIAL.marked({"<e>": ["</s>", 1]}) == {f"{BEGIN}<e>{END}": [f"{BEGIN}</s>{END}", 1]}
