"""The annotator reports exactly the n-grams that a slow search with Python strings finds, wherever they are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from datakit.errors import InputError
from tests.support.annotate.contamination_oracle import Rules, annotated, annotator_of, expected, item_ngrams

WORDS = ["a", "Bb", "ccc", "É", "ß1", "漢", "字", "ไ", "\u0301", "😀", "x_y", "\0", "ǅ", "İ", "-"]
SEPARATORS = [" ", "", "\n", ", ", "  "]
TEXTS = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(SEPARATORS)), max_size=25).map(
    lambda parts: "".join(word + separator for word, separator in parts)
)
ITEMS = st.lists(st.lists(TEXTS, min_size=1, max_size=3), max_size=6)
RULES = st.sampled_from([Rules(), Rules(5, 1, 0), Rules(4, 4, 0), Rules(2, 2, 9), Rules(6, 2, 4, 2)])
HOSTILE = {
    "one character": "a" * (1 << 20),
    "short lines": "a\n" * 500_000,
    "newlines": "\n" * (1 << 20),
    "emoji": "😀" * (1 << 18),
    "combining marks": "e" + "\u0301" * (1 << 19),
    "NUL": "\0" * (1 << 20),
    "Han": "漢" * (1 << 18),
    "repeated n-gram": "one two three four " * 50_000,
}


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(items=ITEMS, texts=st.lists(TEXTS, max_size=6), rules=RULES, data=st.data())
def test_hits_are_those_of_a_slow_search(
    tmp_path: Path, items: list[list[str]], texts: list[str], rules: Rules, data: st.DataObject
) -> None:
    items.append(["one two three four five six seven"])  # so that the column holds a text
    passages = [passage for item in items for passage in item]
    texts += [text + data.draw(st.sampled_from(passages)) + " end" for text in texts]
    ngrams = [item_ngrams(item, rules) for item in items]
    assert annotated(annotator_of(tmp_path, items, rules), texts) == [expected(text, ngrams, rules) for text in texts]


@pytest.mark.parametrize("length", [2, 5, 6])
def test_matches_are_found_at_every_place_of_a_long_document(tmp_path: Path, length: int) -> None:
    """The kernels process 2,048 words at a time; a match may begin in one block and end in the next one."""
    rules, item = Rules(5, 2, 0), " ".join(f"w{i}" for i in range(length))
    annotator = annotator_of(tmp_path, [[item]], rules)
    texts = ["x " * place + item + " x" * 2100 for place in [0, 1, *range(2030, 2060), 4100]]
    for text, row in zip(texts, annotated(annotator, texts), strict=True):
        start = text.index(item)
        assert row["spans"] == [{"start": start, "stop": start + len(item), "kind": "evaluation"}]


@given(texts=st.lists(TEXTS, min_size=1, max_size=8), cut=st.integers(0, 8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@example(texts=["a Bb ccc a", "", "ccc a Bb"], cut=1)
def test_a_row_depends_on_its_document_alone(tmp_path: Path, texts: list[str], cut: int) -> None:
    annotator = annotator_of(tmp_path, [["a Bb ccc a Bb", "É ccc"]], Rules())
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    parts = [annotator.annotate(part).to_pylist() for part in (batch.slice(0, cut), batch.slice(cut))]
    assert parts[0] + parts[1] == annotator.annotate(batch).to_pylist()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_documents_are_searched(tmp_path: Path, name: str) -> None:
    items = [["one two three four five"], ["a a a a"], ["漢 漢漢"], *([["one two three four one"]] * 300)]
    rules, text = Rules(3, 2, 0, 10), HOSTILE[name]
    row = annotated(annotator_of(tmp_path, items, rules), [text, "", text[:100]])[0]
    matching = {"short lines": (0, 1), "Han": (0, 1), "repeated n-gram": (1, 301)}[name] if name in {
        "short lines", "Han", "repeated n-gram"} else (0, 0)  # fmt: skip
    assert row["items"] == (matching[1] or None)
    assert len(row["spans"]) <= 1  # pyright: ignore[reportArgumentType] - a list


def test_repeated_passages_count_once(tmp_path: Path) -> None:
    annotator = annotator_of(tmp_path, [["one two three four", "one two three four"]], Rules())
    (hit,) = annotated(annotator, ["one two three, one two three"])[0]["hits"]  # pyright: ignore[reportGeneralTypeIssues]
    assert (hit["matches"], hit["ngrams"], hit["overlap"]) == (1, 2, 0.5)


def test_no_n_gram_runs_across_the_end_of_a_passage(tmp_path: Path) -> None:
    annotator = annotator_of(tmp_path, [["one two three", "four five six"]], Rules(3, 3, 0))
    assert annotated(annotator, ["two three four five"])[0]["items"] is None


def test_parameters_name_everything_that_changes_the_output(tmp_path: Path) -> None:
    first = annotator_of(tmp_path, [["one two three"]], Rules()).parameters
    assert annotator_of(tmp_path, [["one two four"]], Rules()).parameters != first
    assert annotator_of(tmp_path, [["one two three"]], Rules(4)).parameters != first
    assert annotator_of(tmp_path, [["one two three"]], Rules(max_hits=3)).parameters != first
    assert annotator_of(tmp_path, [["one two three"]], Rules()).parameters == first


def test_set_of_which_nothing_can_be_found_is_refused(tmp_path: Path) -> None:
    """That no document hits it would look like a proof that no document contains it."""
    with pytest.raises(InputError, match=r"none of its 2 items can be found.* at least 4 words with 0 characters"):
        annotator_of(tmp_path, [["one two three"], ["four five six"]], Rules(5, 4, 0))
    annotator_of(tmp_path, [["one two three"], ["four five six seven"]], Rules(5, 4, 0))
