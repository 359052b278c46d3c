"""Every number is what plain Python computes, in any batch, and the annotator refuses what it cannot use."""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.annotate.annotator import Annotator
from datakit.annotate.heuristics.config import HeuristicsConfig
from datakit.annotate.heuristics.kernels import counts
from datakit.annotate.heuristics.kernels.measure import Limits, measure
from datakit.annotate.heuristics.kernels.stop_words import stop_words
from datakit.errors import ColumnError, RecipeError
from datakit.text.string_buffers import string_buffers
from datakit.toml_config import decoded
from tests.support.annotate.heuristics import Numbers, reference
from tests.support.data import need_data, texts_of

SMALL = HeuristicsConfig(stop_words=("gopher", "deu_Latn"), short_line=4, fewest_words=2, longest_word=6)
PIECES = st.sampled_from(
    [
        *(" ", "\n", "\n\n", "\r", "\r\n", "\u2028", "\x85", "\x1c", "\v", "\u3000", "\t", "\0", "\ufeff", "\u200b"),
        *(
            "a",
            "b",
            "the",
            "of",
            "und",
            "der",
            "word",
            "longword",
            "é",
            "漢",
            "字",
            "。",
            "か",
            "ที่",
            "😀",
            "\u0301",
            "𝐀",
        ),
        *(".", "...", "…", "..", "!", "?", '"', "'", ")", "#", "-", "•", "{", "}", "[", "]", "1", "|", "１", "。」"),
        *("[1]", "[edit]", "[citation needed]", "[12", "edit]", "needed]"),
        *("javascript", "JavaScript", "lorem ipsum", "Lorem  ipsum", "terms of use", "Privacy Policy", "use cookies"),
        *("uses cookies", "use of cookies", "cookie policy", "cookies", "j", "K", "a b c d e f", "x y x y"),
    ]
)
HOSTILE = [
    "a ",
    "a",
    " ",
    "\n",
    "\r",
    "\r\n",
    "a\n",
    "a\n\n",
    "ab cd ",
    "a b\n",
    "\u2028",
    "\u0301",
    "...",
    "…",
    "{",
    "[1]",
    "[1",
    "1]",
    "漢",
    "字。",
    "😀 ",
    '"',
    "javascript ",
    "use of cookies ",
    "- \n",
    "\0",
    "\x85",
]
TEXTS = st.one_of(
    st.lists(PIECES, max_size=40).map("".join),
    st.lists(PIECES, max_size=40).map(" ".join),
    st.lists(st.sampled_from(["a", "b", "ab", "c."]), max_size=80).map(" ".join),
    st.lists(st.sampled_from(["a b", "", " ", "c.", "a b\n\nc."]), max_size=20).map("\n".join),
    st.text(max_size=60),
)


@functools.cache
def annotator_of(config: HeuristicsConfig) -> Annotator:
    return config.annotator()


def batch(*texts: str | None, kind: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(texts, kind or pa.large_string())], names=["text"])


def expected(text: str, config: HeuristicsConfig) -> Numbers:
    return reference(text, config.short_line, config.fewest_words, config.longest_word, config.stop_words)


@settings(max_examples=400)
@given(texts=st.lists(TEXTS, max_size=4))
def test_numbers_are_those_of_plain_python(texts: list[str]) -> None:
    found = annotator_of(SMALL).annotate(batch(*texts))
    found.validate(full=True)
    assert found.to_pylist() == [expected(text, SMALL) for text in texts]


@given(texts=st.lists(TEXTS, min_size=1, max_size=6), data=st.data())
def test_neighbours_change_nothing(texts: list[str], data: st.DataObject) -> None:
    annotator, whole = annotator_of(SMALL), batch(*texts)
    first = data.draw(st.integers(0, len(texts) - 1))
    found = annotator.annotate(whole).slice(first)
    assert annotator.annotate(whole.slice(first)).equals(found)
    alone = [annotator.annotate(batch(text)) for text in texts[first:]]
    assert pa.Table.from_batches(alone).combine_chunks().to_batches()[0].equals(found)


@pytest.mark.parametrize("name", ["nltk-udhr2.jsonl.gz", "php-ja.parquet", "peps.jsonl.zst", "tldr.parquet"])
def test_numbers_of_real_texts_are_those_of_plain_python(name: str) -> None:
    config = HeuristicsConfig(("gopher", "deu_Latn"))
    texts = [text for text in texts_of(need_data() / "text" / name) if len(text) < 20_000][::23]
    found = annotator_of(config).annotate(batch(*texts))
    assert found.to_pylist() == [expected(text, config) for text in texts]


@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
def test_a_megabyte_of_one_piece_is_counted(piece: str) -> None:
    count = 1_000_000 // len(piece.encode())
    (found,) = annotator_of(HeuristicsConfig()).annotate(batch(piece * count)).to_pylist()
    assert found["characters"] == count * len(piece)
    for n in range(5, 11):
        assert 0 <= found[f"duplicate_{n}_gram_character_ratio"] <= 1
    assert found["curly_brackets"] == count * piece.count("{")
    assert found["lines"] == len((piece * count).splitlines())


@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
def test_work_grows_with_the_words_and_lines_of_any_text(piece: str) -> None:
    """Each of the words, of nine lengths of n-grams, of the lines and of the paragraphs takes few looks at a table."""
    count = 200_000 // len(piece.encode())
    data, offsets = string_buffers(pa.array([piece * count], pa.large_string()))
    (row,) = measure(data, offsets, Limits(30, 3, 1000), stop_words(("gopher",))).tolist()
    spans = 10 * row[counts.WORDS] + row[counts.FILLED_LINES] + row[counts.PARAGRAPHS]
    assert row[counts.STEPS] <= 2 * spans


def test_work_grows_with_the_words_of_texts_without_repetitions() -> None:
    texts = [" ".join(f"{number:x}" for number in range(first, first + 50_000)) for first in (0, 2**31, 2**62)]
    texts += [
        "\n".join(f"{number:07}" for number in range(50_000)),
        "\n\n".join(f"{number} x" for number in range(50_000)),
    ]
    data, offsets = string_buffers(pa.array(texts, pa.large_string()))
    for row in measure(data, offsets, Limits(30, 3, 1000), stop_words(("gopher",))).tolist():
        assert row[counts.STEPS] <= 3 * (10 * row[counts.WORDS] + row[counts.FILLED_LINES] + row[counts.PARAGRAPHS])


def test_a_document_without_words_has_numbers() -> None:
    found = annotator_of(HeuristicsConfig()).annotate(batch("", "\n", " \u3000\r\n")).to_pylist()
    assert [(one["words"], one["lines"], one["paragraphs"], one["mean_word_length"]) for one in found] == [
        (0, 0, 0, 0.0),
        (0, 1, 0, 0.0),
        (0, 1, 0, 0.0),
    ]


def test_a_batch_without_documents_has_no_rows() -> None:
    assert annotator_of(HeuristicsConfig()).annotate(batch()).num_rows == 0


def test_string_columns_of_both_kinds_have_the_same_numbers() -> None:
    texts, annotator = ("one two", "漢 {"), annotator_of(HeuristicsConfig())
    assert annotator.annotate(batch(*texts, kind=pa.string())).equals(annotator.annotate(batch(*texts)))


def test_the_annotator_says_what_it_does() -> None:
    annotator = annotator_of(SMALL)
    assert (annotator.name, annotator.columns, annotator.sparse) == ("heuristics", ("text",), False)
    assert annotator.parameters == {
        "short_line": 4,
        "fewest_words": 2,
        "longest_word": 6,
        "stop_words": ["gopher", "deu_Latn"],
    }
    assert not any(field.nullable for field in annotator.schema)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stop_words": ["gofer"]}, "did you mean 'gopher'"),
        ({"stop_words": ["gopher", "gopher"]}, "listed twice"),
        ({"short_line": -1}, "short_line is -1"),
        ({"longest_word": 10**9}, "longest_word is 1000000000"),
        ({"fewest_words": "3"}, "fewest_words"),
        ({"short_lines": 3}, "did you mean 'short_line'"),
    ],
)
def test_wrong_settings_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        decoded(values, HeuristicsConfig, "[annotate.heuristics]")


def test_batches_without_usable_texts_are_refused() -> None:
    annotator = annotator_of(HeuristicsConfig())
    with pytest.raises(ColumnError, match="no column 'text'"):
        annotator.annotate(pa.RecordBatch.from_arrays([pa.array(["x"])], names=["body"]))
    with pytest.raises(ColumnError, match="type int64"):
        annotator.annotate(batch(kind=pa.int64()))
    with pytest.raises(ColumnError, match="1 nulls"):
        annotator.annotate(batch("x", None))


def test_a_text_of_more_than_2_gib_is_refused() -> None:
    with pytest.raises(ColumnError, match="a text has 2,147,483,648 bytes"):
        measure(np.zeros(0, np.uint8), np.array([0, 2**31]), Limits(30, 3, 1000), stop_words(("gopher",)))
