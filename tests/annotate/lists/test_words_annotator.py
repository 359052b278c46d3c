"""The annotator `words` finds exactly the occurrences that trying each entry at each character finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.annotate.lists.characters import lowercase
from datakit.annotate.lists.config import WordList, WordsConfig
from datakit.annotate.lists.list_files import _without_words
from datakit.annotate.lists.symbol_kernels import BLOCK
from datakit.annotate.lists.words_annotator import WordsAnnotator
from tests.support.annotate.list_oracle import matches_of, word_places

LETTERS = "abAB_1 -'.\nßΣς北京ิกहिी\u0301éİ💩"


def annotator_of(words: dict[str, list[str]], substrings: dict[str, list[str]]) -> WordsAnnotator:
    plain = [{name: pa.array(one, pa.large_string()) for name, one in lists.items()} for lists in (words, substrings)]
    return WordsAnnotator(1, {}, *plain)


def rows_of(annotator: WordsAnnotator, texts: list[str]) -> list[dict[str, Any]]:
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    found = annotator.annotate(batch)
    found.validate(full=True)
    return found.to_pylist()


def expected(text: str, entries: list[str], words: bool) -> dict[str, Any]:
    """Return what the oracle finds of one list `x`."""
    found = matches_of(text, entries, words)
    places = word_places(text) if words else [(i, i + 1) for i in range(len(text))]
    covered = sum(any(one.start <= start and stop <= one.stop for one in found) for start, stop in places)
    spans: list[list[int]] = []
    for one in found:
        if spans and one.start < spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], one.stop)
        else:
            spans.append([one.start, one.stop])
    return {
        "x": len(found),
        "x_entries": len({one.entry for one in found}),
        "x_share": covered / len(places) if places else 0.0,
        "spans": [
            {"start": len(text[:start].encode()), "stop": len(text[:stop].encode()), "kind": "x"}
            for start, stop in spans
        ],
    }


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], list[str], bool]:
    """Entries, texts that contain some of them, and whether the entries are words."""
    words = draw(st.booleans())
    raw = draw(st.lists(st.text(LETTERS, min_size=1, max_size=5), min_size=1, max_size=6))
    entries = list(dict.fromkeys(" ".join(lowercase(one).split()) if words else lowercase(one) for one in raw))
    entries = [one for one in entries if one and (not words or not _without_words([one]))] or ["a"]
    part = st.one_of(st.text(LETTERS, max_size=8), st.sampled_from(entries))
    texts = draw(st.lists(st.lists(part, max_size=8).map("".join), min_size=1, max_size=4))
    return entries, texts, words


@given(cases())
@settings(deadline=None, max_examples=500)
def test_all_occurrences_are_found(case: tuple[list[str], list[str], bool]) -> None:
    entries, texts, words = case
    annotator = annotator_of(*(({"x": entries}, {}) if words else ({}, {"x": entries})))
    assert rows_of(annotator, texts) == [expected(text, entries, words) for text in texts]


@given(cases())
@settings(deadline=None, max_examples=100)
def test_neighbors_in_the_batch_change_nothing(case: tuple[list[str], list[str], bool]) -> None:
    entries, texts, words = case
    annotator = annotator_of(*(({"x": entries}, {}) if words else ({}, {"x": entries})))
    alone = [row for text in texts for row in rows_of(annotator, [text])]
    assert rows_of(annotator, texts) == alone == rows_of(annotator, texts[::-1])[::-1]


@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("shift", range(-6, 4))
def test_entry_across_the_end_of_a_block_is_found(words: bool, shift: int) -> None:
    filler = "z " * BLOCK if words else "z" * BLOCK
    unit = 2 if words else 1
    text = f"{filler[: len(filler) + unit * shift]}one two three {filler}"
    row = rows_of(annotator_of(*(({"x": ["one two three", "three"]}, {}) if words else
                                 ({}, {"x": ["one two three", "three"]}))), [text])[0]  # fmt: skip
    assert (row["x"], row["x_entries"], len(row["spans"])) == (2, 2, 1)
    assert text[row["spans"][0]["start"] : row["spans"][0]["stop"]] == "one two three"


@pytest.mark.parametrize(
    ("entry", "text", "found"),
    [
        ("new york", "New\n  YORK; new-york, newyork", ["New\n  YORK", "new-york"]),
        ("don't", "Don't. don t, don’t", ["Don't"]),
        ("c++", "C++ c+ (c++17)", ["C++", "c++"]),
        ("straße", "STRASSE Straße STRAẞE", ["Straße", "STRAẞE"]),
        ("οδος", "ΟΔΟΣ οδος", ["ΟΔΟΣ", "οδος"]),
        ("北京", "我在北京, 南北京城", ["北京", "北京"]),
        ("हिन्द", "हिन्दी हिन्द", ["हिन्द"]),
        ("हन", "हिन हन", ["हन"]),
        ("กิน", "อยากกินข้าว กินิ", ["กิน"]),
        ("cafe", "cafe cafe\u0301 café", ["cafe"]),
        ("a", "a_b A 2a a\u200bb", ["A", "a"]),
    ],
)
def test_word_rule(entry: str, text: str, found: list[str]) -> None:
    (row,) = rows_of(annotator_of({"x": [lowercase(entry)]}, {}), [text])
    assert [text.encode()[one["start"] : one["stop"]].decode() for one in row["spans"]] == found


def test_lists_of_both_kinds_are_counted_apart() -> None:
    annotator = annotator_of({"b": ["bad", "bad word"], "c": ["word"]}, {"a": ["ad wo"]})
    (row, empty) = rows_of(annotator, ["a BAD word", ""])
    assert (row["b"], row["b_entries"], row["b_share"]) == (2, 2, 2 / 3)
    assert (row["c"], row["a"], row["a_share"]) == (1, 1, 5 / 10)
    assert [(one["start"], one["stop"], one["kind"]) for one in row["spans"]] == [
        (2, 10, "b"),
        (3, 8, "a"),
        (6, 10, "c"),
    ]
    assert empty == {name: 0 for name in empty if name != "spans"} | {"spans": []}
    table = pa.Table.from_batches([annotator.annotate(pa.record_batch({"text": pa.array(["bad", "x"])}))])
    assert annotator.counts(table) == {"a": 0, "b": 1, "c": 0}


def test_entries_with_a_common_beginning_of_all_lengths(tmp_path: Path) -> None:
    entries = ["a" * length for length in range(1, 200)]
    (tmp_path / "list.txt").write_text("\n".join(entries))
    annotator = WordsConfig({"x": WordList(str(tmp_path / "list.txt"), "substrings")}).annotator()
    batch = pa.record_batch({"text": pa.array(["a" * 300])})
    assert annotator.annotate(batch).to_pylist()[0]["x"] == sum(301 - len(one) for one in entries)
