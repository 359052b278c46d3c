"""The annotator `language` gives fastText's labels; documents without letters have none."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from datakit.annotate.language.builtin_model import BUILTIN_SHA256, builtin_path
from datakit.annotate.language.config import LanguageConfig
from datakit.errors import ChangedInputError, RecipeError, UsageError
from datakit.toml_config import decoded
from tests.support.annotate.fasttext_files import Spec, probabilities, write
from tests.support.data import need_data, texts_of

# Digests of the labels that fastText 0.9.2 (package fasttext-predict 0.9.2.4) gives to whole documents of each file,
# one per line; benchmarks/language.py compares them with those of the installed library.
LABELS = {
    "nltk-udhr2.jsonl.gz": (237, "c8fe2068a10f50e4"),
    "php-en.jsonl.gz": (6701, "633c627c9f54f1cc"),
    "php-ja.parquet": (4729, "398423ef9adcab0f"),
}


@pytest.fixture
def default_model() -> None:
    try:
        builtin_path()
    except UsageError as problem:
        pytest.skip(str(problem))


def annotated(config: LanguageConfig, texts: list[str]) -> list[dict[str, Any]]:
    annotator = config.annotator()
    table = annotator.annotate(pa.record_batch({"text": pa.array(texts, pa.large_string())}))
    table.validate(full=True)
    assert table.schema == annotator.schema
    return table.to_pylist()


def small_model(folder: Path, **settings: Any) -> LanguageConfig:
    path = folder / "small.bin"
    path.write_bytes(write(Spec()).data)
    return LanguageConfig(str(path), hashlib.sha256(path.read_bytes()).hexdigest(), **settings)


@pytest.mark.usefixtures("default_model")
@pytest.mark.parametrize("name", LABELS)
def test_labels_of_real_documents_are_those_of_fasttext(name: str) -> None:
    texts = texts_of(need_data() / "text" / name)
    labels = [one["label"] for one in annotated(LanguageConfig(), texts)]
    assert None not in labels
    assert (len(labels), xxhash.xxh3_64_hexdigest("\n".join(labels).encode())) == LABELS[name]


@pytest.mark.usefixtures("default_model")
def test_languages_are_recognized() -> None:
    texts = ["The cat sat on the mat.", "Le chat est assis sur le tapis.", "猫はマットの上に座った。"]
    found = annotated(LanguageConfig(), texts)
    assert [one["label"] for one in found] == ["en", "fr", "ja"]
    assert all(0.5 < one["score"] <= 1 for one in found)


@pytest.mark.usefixtures("default_model")
def test_scores_never_exceed_one() -> None:
    assert annotated(LanguageConfig(), ["日本語の文章です。" * 50])[0]["score"] == 1.0


@pytest.mark.parametrize("text", ["", " ", "\n\n", "123 456", "\0", "😀", "\u0301"])
def test_a_text_without_letters_has_no_language(text: str, tmp_path: Path) -> None:
    assert annotated(small_model(tmp_path), [text, "the"])[0] == {"label": None, "score": None}
    assert annotated(small_model(tmp_path, top_k=2), [text])[0] == {"label": None, "score": None, "top": []}


def test_a_newline_is_a_space(tmp_path: Path) -> None:
    config = small_model(tmp_path, top_k=3)
    assert annotated(config, ["the\nla\n\n日本"]) == annotated(config, ["the la  日本"])


def test_a_model_of_the_user_gives_its_labels(tmp_path: Path) -> None:
    (found,) = annotated(small_model(tmp_path, top_k=5), ["la the la"])
    expected = probabilities(write(Spec()), ["la the la"])
    assert expected is not None
    ranked = sorted(zip(expected, ("en", "fr", "ja"), strict=True), reverse=True)
    assert [one["label"] for one in found["top"]] == [label for _, label in ranked]
    assert [one["score"] for one in found["top"]] == pytest.approx([score for score, _ in ranked], abs=1e-4)
    assert (found["label"], found["score"]) == (found["top"][0]["label"], found["top"][0]["score"])


def test_long_documents_are_sampled(tmp_path: Path) -> None:
    text = "the " * 1000 + "日本 " * 1000
    short, long = (annotated(small_model(tmp_path, max_bytes=size), [text])[0] for size in (1024, 1 << 20))
    assert short["score"] != long["score"]


def test_batches_without_documents_are_annotated(tmp_path: Path) -> None:
    assert annotated(small_model(tmp_path, top_k=2), []) == []


def test_attributes_depend_on_their_document_only(tmp_path: Path) -> None:
    config, texts = small_model(tmp_path, top_k=2), ["the", "", "la la", "日本 x", "1"]
    assert annotated(config, texts) == [annotated(config, [text])[0] for text in texts]


def test_parameters_hold_the_sha256_of_the_model(tmp_path: Path) -> None:
    config = small_model(tmp_path)
    upper = LanguageConfig(config.model, config.sha256.upper()).annotator()
    assert upper.parameters == {"model": config.model, "sha256": config.sha256, "top_k": 1, "max_bytes": 65536}
    assert LanguageConfig(**upper.parameters).annotator().parameters == upper.parameters
    assert LanguageConfig().effective_sha256 == BUILTIN_SHA256


def test_another_file_is_refused(tmp_path: Path) -> None:
    config = small_model(tmp_path)
    Path(config.model).write_bytes(write(Spec(seed=2)).data)
    other = LanguageConfig(config.model, "0" * 64)
    with pytest.raises(ChangedInputError, match="the sha256 of the model"):
        annotated(other, ["the"])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"model": "x.bin"}, "64 hex digits"),
        ({"model": ""}, "model is empty"),
        ({"sha256": "0" * 64}, "remove this setting"),
        ({"top_k": 0}, "top_k is 0"),
        ({"max_bytes": 10}, "max_bytes is 10"),
        ({"topk": 1}, "did you mean 'top_k'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        decoded(settings, LanguageConfig, "annotate.language")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datakit.annotate.language.builtin_model.PACKAGE", "no_such_package")
    builtin_path.cache_clear()
    try:
        with pytest.raises(UsageError, match="is not installed"):
            LanguageConfig().load()
    finally:
        builtin_path.cache_clear()
