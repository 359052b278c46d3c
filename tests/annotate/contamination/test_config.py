"""Options that cannot mean anything are refused, with the name of the option."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from datakit.annotate.contamination.annotator import KIND
from datakit.annotate.contamination.config import Config, EvaluationFiles

SETS = {"one": EvaluationFiles("one.jsonl")}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sets": {}}, "sets is empty"),
        ({"ngram": 1}, "ngram is 1"),
        ({"ngram": 65}, "ngram is 65"),
        ({"min_words": 0}, "min_words is 0"),
        ({"min_words": 14}, "min_words is 14"),
        ({"min_characters": -1}, "min_characters is -1"),
        ({"max_hits": 0}, "max_hits is 0"),
        ({"max_hits": 10_001}, "max_hits is 10001"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Config(**{"sets": SETS, **options})


def test_edits_know_the_kind_of_all_spans() -> None:
    assert Config.kinds == (KIND,)


def test_options_are_read_from_plain_data() -> None:
    plain = {"sets": {"one": {"path": "one.jsonl"}}, "ngram": 8}
    assert msgspec.convert(plain, Config, strict=True) == Config(SETS, ngram=8)


def test_ngrams_of_the_largest_length_are_accepted() -> None:
    assert Config(SETS, ngram=64, min_words=64).ngram == 64


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"columns": ("a", "a")}, "columns must name"),
        ({"columns": ("",)}, "columns must name"),
        ({"suite": "mmul"}, "suite is 'mmul'.* did you mean 'mmlu'"),
        ({"path": ""}, "path is empty"),
        ({"sha256": "12"}, "sha256 is '12'"),
    ],
)
def test_wrong_settings_of_a_set_are_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        EvaluationFiles(**{"path": "one.jsonl", **values})


def test_columns_are_those_given_or_those_of_the_suite_or_the_question() -> None:
    assert EvaluationFiles("one.jsonl").columns == ("question",)
    assert EvaluationFiles("one.jsonl", suite="hellaswag").columns == ("ctx", "endings")
    assert EvaluationFiles("one.jsonl", ("passage",), suite="boolq").columns == ("passage",)
