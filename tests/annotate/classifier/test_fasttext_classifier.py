"""The annotator `classifier_fasttext` gives the probabilities of the chosen labels."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from datakit.annotate.classifier.config import FasttextClassifierConfig
from datakit.errors import RecipeError, UsageError
from datakit.toml_config import decoded
from tests.support.annotate.fasttext_files import Spec, probabilities, write

TEXTS = ["the la", "", "日本 é the", "mot inconnu", "la " * 500]


def classifier(folder: Path, labels: tuple[str, ...], spec: Spec | None = None) -> FasttextClassifierConfig:
    path = folder / "classifier.bin"
    path.write_bytes(write(spec or Spec()).data)
    return FasttextClassifierConfig(str(path), hashlib.sha256(path.read_bytes()).hexdigest(), labels)


def annotated(config: FasttextClassifierConfig, texts: list[str]) -> list[dict[str, Any]]:
    annotator = config.annotator()
    table = annotator.annotate(pa.record_batch({"text": pa.array(texts, pa.large_string())}))
    table.validate(full=True)
    assert table.schema == annotator.schema
    return table.to_pylist()


def test_each_chosen_label_has_a_column(tmp_path: Path) -> None:
    for text, found in zip(TEXTS, annotated(classifier(tmp_path, ("ja", "en")), TEXTS), strict=True):
        expected = probabilities(write(Spec()), [text])
        assert expected is not None
        assert found == pytest.approx({"ja": expected[2], "en": expected[0]}, abs=1e-4)


def test_a_document_unknown_to_the_model_has_no_score(tmp_path: Path) -> None:
    words_only = Spec(words=("the",), longest=0, buckets=0)
    assert annotated(classifier(tmp_path, ("en",), words_only), ["mot", ""]) == [{"en": None}, {"en": None}]


def test_scores_depend_on_their_document_only(tmp_path: Path) -> None:
    config = classifier(tmp_path, ("fr",))
    assert annotated(config, TEXTS) == [annotated(config, [text])[0] for text in TEXTS]


def test_an_unknown_label_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no label 'eng'; did you mean 'en'"):
        annotated(classifier(tmp_path, ("eng",)), ["the"])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"labels": []}, "at least one label"),
        ({"labels": ["a", "a"]}, "none twice"),
        ({"model": ""}, "model is empty"),
        ({"sha256": "12"}, "64 hex digits"),
        ({"max_bytes": 3}, "max_bytes is 3"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], problem: str) -> None:
    table = {"model": "quality.bin", "sha256": "0" * 64, "labels": ["hq"], **settings}
    with pytest.raises(RecipeError, match=problem):
        decoded(table, FasttextClassifierConfig, "annotate.classifier_fasttext")
