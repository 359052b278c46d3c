"""Findings depend on the document and the kind alone, and items planted in texts are found where they were planted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.annotate.personal.kinds import KINDS
from tests.support.annotate.personal_items import MAKERS
from tests.support.annotate.planting import planted, score, spans_of
from tests.support.data import need_data, texts_of

PIECES = [
    "a@b.de", "8.8.4.4", "+49 30 1234567", "4111 1111 1111 1111", "DE89 3704 0044 0532 0130 00", "::", "2a00:1:2::3",
    "token='", "a8Gf5Kq2zX9pLw7Rt3Vb'", "AKIAQWERTYUIOPASDFGH", "@", " ", "é", "1", ".", "-", "\n", "漢", "version ",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
# of the planted items; telephone numbers without any sign and addresses that look like section numbers are not found
LEAST_RECALL = {"phone": 0.85, "ipv4": 0.98, "ipv4_reserved": 0.95, "secret": 0.99}


@given(st.lists(TEXTS, max_size=5))
@settings(max_examples=200)
def test_findings_do_not_depend_on_other_documents(texts: list[str]) -> None:
    assert spans_of(texts) == [found for text in texts for found in spans_of([text])]


@given(TEXTS, st.sets(st.sampled_from(KINDS), min_size=1))
@settings(max_examples=200)
def test_findings_do_not_depend_on_the_other_kinds(text: str, kinds: set[str]) -> None:
    (everything,) = spans_of([text])
    assert spans_of([text], tuple(kinds)) == [[found for found in everything if found[0] in kinds]]


@given(TEXTS)
@settings(max_examples=200)
def test_findings_lie_between_characters_and_are_ordered(text: str) -> None:
    (found,) = spans_of([text])
    assert found == sorted(found, key=lambda one: (one[1], one[2], one[0]))
    for _, start, stop in found:
        assert start < stop
        assert text.encode()[start:stop].decode()


def test_a_match_never_crosses_documents() -> None:
    assert spans_of(["a@", "b.de", "8.8.", "4.4", "+49 30 ", "1234567"]) == [[]] * 6


def check(texts: list[str], items: int) -> None:
    """Plant items, and check the share that is found, and that nothing else is."""
    result = score(planted(texts, items, seed=7))
    assert not result.wrong
    for kind, count in result.items.items():
        assert result.exact[kind] >= LEAST_RECALL.get(kind, 1.0) * count, kind


def test_items_planted_in_made_up_text_are_found() -> None:
    chance = random.Random(5)
    check(
        [
            " ".join(chance.choices(["der", "Wert", "of", "漢字", "été", "3", "12,", "2004", "x."], k=60))
            for _ in range(500)
        ],
        3_400,
    )


@pytest.mark.parametrize("name", ["php-en.jsonl.gz", "php-ja.parquet", "tldr.parquet"])
def test_items_planted_in_real_texts_are_found(name: str) -> None:
    texts = texts_of(need_data() / "text" / name)[:3000]
    check([text for text, found in zip(texts, spans_of(texts), strict=True) if not found], 1_700)


def test_there_are_items_of_every_kind() -> None:
    assert sorted(maker.__name__ for maker in MAKERS) == sorted(KINDS)
