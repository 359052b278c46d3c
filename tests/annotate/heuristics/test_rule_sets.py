"""The rule sets drop what the filters of Gopher, C4, mC4 and FineWeb drop, for the same reason, and all can be used."""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.annotate.annotator import Annotator
from datakit.annotate.heuristics.config import HeuristicsConfig
from datakit.annotate.heuristics.stop_word_lists import stop_word_lists
from datakit.conditions.config import Rule as RecipeRule
from datakit.conditions.expressions import Conditions
from datakit.errors import RecipeError
from datakit.rule_sets.files import parts_of, rule_set, rule_set_names
from tests.support.annotate.filters import FILTERS, verdict
from tests.support.data import need_data, texts_of

ENDS = st.sampled_from(
    [".", "!", "...", "…", "", " ", '."', ". [1]", ".[1]", "。", " {", "#", ". lorem ipsum.", "; javascript."]
)
WORDS = st.sampled_from(
    [
        *("the", "of", "and", "people", "bread", "town", "a", "b", "it", "-", "•", "12", "#", "...", "…", "?", "漢"),
        *("extraordinarily", "incomprehensible", "Use", "cookies"),
    ]
)
LINES = st.builds(
    lambda words, repeats, end: " ".join(words * repeats) + end,
    st.lists(WORDS, min_size=1, max_size=12), st.integers(1, 4), ENDS,
)  # fmt: skip
LINE_BREAKS = st.sampled_from(["\n", "\n\n", "\r\n", "\u2028", "\n \n", " "])
TEXTS = st.builds(
    lambda lines, repeats, between: between.join(lines * repeats),
    st.lists(LINES, max_size=8), st.integers(1, 3), LINE_BREAKS,
)  # fmt: skip
PROSE = " ".join(f"The people of town {number} have bread, and they like it very much." for number in range(60))


@functools.cache
def annotator(lists: tuple[str, ...]) -> Annotator:
    return HeuristicsConfig(lists).annotator()


@functools.cache
def conditions(name: str, part: str) -> Conditions:
    return Conditions([RecipeRule(name=rule["name"], where=rule["where"]) for rule in rule_set(name, part)])


def verdicts(name: str, texts: list[str], part: str = "rules", lists: tuple[str, ...] = ("gopher",)) -> list[str]:
    """The name of the first rule that is true for each text, as the stage `rules` evaluates it."""
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    numbers = annotator(lists).annotate(batch)
    answers = conditions(name, part).answers(pa.table({"heuristics": numbers.to_struct_array()}), "texts")
    true = np.array([answer.where for answer in answers])
    names = [rule["name"] for rule in rule_set(name, part)]
    return [names[int(column.argmax())] if column.any() else "" for column in true.T]


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.one_of(TEXTS, TEXTS.map(lambda text: text + "\n" + PROSE)), min_size=1, max_size=6))
def test_verdicts_are_those_of_plain_python(texts: list[str]) -> None:
    for name in FILTERS:
        assert verdicts(name, texts) == [verdict(name, text) for text in texts], name


@pytest.mark.parametrize("file", ["nltk-state_union.jsonl.gz", "php-en.jsonl.gz", "nltk-udhr2.jsonl.gz"])
def test_verdicts_of_real_texts_are_those_of_plain_python(file: str) -> None:
    texts = [text for text in texts_of(need_data() / "text" / file) if len(text) < 10_000][::37]
    for name in FILTERS:
        assert verdicts(name, texts) == [verdict(name, text) for text in texts], name


def test_the_oracle_states_every_set_with_one_list() -> None:
    assert {*FILTERS} == {*rule_set_names()} - {"fineweb2"}


def test_each_rule_can_be_the_reason() -> None:
    """Otherwise, the comparison with plain Python proves nothing for this rule."""
    line = "The people of the town have bread and they like it."
    numbered = [f"{number} {line}" for number in range(20)]
    texts = {
        ("gopher_quality", "few_words"): "few words",
        ("gopher_quality", "many_words"): "word " * 100_001,
        ("gopher_quality", "short_words"): "a b " * 60,
        ("gopher_quality", "long_words"): "incomprehensibility " * 60,
        ("gopher_quality", "hashes"): "#word # " * 60,
        ("gopher_quality", "ellipses"): "word... " * 60,
        ("gopher_quality", "bullet_lines"): "\n".join(f"- {one}" for one in numbered),
        ("gopher_quality", "ellipsis_lines"): "\n".join(f"{one} The people of the town…" for one in numbered),
        ("gopher_quality", "few_alphabetic_words"): "123456 " * 60,
        ("gopher_quality", "few_stop_words"): "bread " * 60,
        ("gopher_repetition", "no_text"): "",
        ("gopher_repetition", "duplicate_paragraphs"): "a\n\na",
        ("gopher_repetition", "duplicate_paragraph_characters"): f"{line}\n\n{line}\n\na\n\nb\n\nc",
        ("gopher_repetition", "duplicate_lines"): "a\na",
        ("gopher_repetition", "duplicate_line_characters"): f"{line}\n{line}\na\nb\nc",
        ("gopher_repetition", "top_2_grams"): "one two three one two",
        ("c4", "lorem_ipsum"): "Lorem ipsum dolor sit amet.",
        ("c4", "curly_brackets"): "One { two three.",
        ("c4", "few_sentences"): line,
        ("mc4", "few_long_lines"): line,
        ("fineweb_quality", "no_text"): "\n",
        ("fineweb_quality", "unterminated_lines"): "no end",
        ("fineweb_quality", "short_lines"): "Short.",
        ("fineweb_quality", "duplicate_line_characters"): f"{line}\n{line}",
        ("fineweb_quality", "list"): line + "\n" * 9,
    }
    for (name, reason), text in texts.items():
        assert verdicts(name, [text]) == [reason] == [verdict(name, text)]
    assert verdicts("fineweb_quality", ["\n".join(numbered)]) == [""] == verdicts("c4", ["\n".join(numbered)])


@pytest.mark.parametrize("part", parts_of("fineweb2"))
def test_the_lists_of_fineweb2_can_be_used(part: str) -> None:
    assert part in stop_word_lists()
    answers = verdicts("fineweb2", ["", "- word"], part, (part,))
    assert answers[0] == "no_text"
    assert answers[1] in {"unterminated_lines", "few_words"}


def test_thresholds_of_fineweb2_are_those_of_the_language() -> None:
    lines = "".join(f"a{number} b{number} c{number} d{number} e{number}.\n" for number in range(30))
    assert verdicts("fineweb2", [lines], "deu_Latn", ("deu_Latn",)) == ["list"]
    limits = {rule["where"] for rule in rule_set("fineweb2", "deu_Latn") if rule["name"] == "list"}
    assert limits == {"heuristics.newline_ratio > 0.152"}


def test_unknown_sets_and_lists_are_refused() -> None:
    assert rule_set("mc4") == [{"name": "few_long_lines", "where": "heuristics.third_longest_line < 200"}]
    with pytest.raises(RecipeError, match="did you mean 'gopher_quality'"):
        rule_set("gofer_quality")
    with pytest.raises(RecipeError, match="did you mean 'deu_Latn'"):
        rule_set("fineweb2", "deu_latn")
