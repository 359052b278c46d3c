"""A trained model separates the classes, measures itself on held-out documents, and depends on its input only."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.annotate.classifier.config import LinearClassifierConfig
from datakit.annotate.classifier.train import TrainSettings, measured, train, train_files
from datakit.errors import ColumnError, RecipeError, UsageError
from datakit.toml_config import decoded

needs_sklearn = pytest.mark.usefixtures("sklearn")
SETTINGS = TrainSettings(bits=12)


@pytest.fixture
def sklearn() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")


def made_up(words: str, documents: int, seed: int) -> pa.ChunkedArray:
    """Documents of ten random words of one class and ten common ones."""
    random = np.random.default_rng(seed)
    vocabulary, common = words.split(), ["one", "two", "three", "four", "five"]
    texts = [" ".join([*random.choice(vocabulary, 10), *random.choice(common, 10), str(i)]) for i in range(documents)]
    return pa.chunked_array([pa.array(texts, pa.large_string())])


GOOD, BAD = made_up("theorem proof lemma axiom", 300, 1), made_up("buy cheap offer now", 300, 2)


@needs_sklearn
def test_classes_are_separated() -> None:
    quality = train(GOOD, BAD, SETTINGS).quality
    assert quality.roc_auc == 1.0
    assert quality.brier < 0.05
    assert sum(one.documents for one in quality.calibration) == quality.documents


@needs_sklearn
def test_classes_without_difference_are_not_separated() -> None:
    quality = train(GOOD, made_up("theorem proof lemma axiom", 300, 3), SETTINGS).quality
    assert 0.2 < quality.roc_auc < 0.8


@needs_sklearn
def test_the_same_texts_give_the_same_bytes(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{i}.parquet") for i in range(3)]
    for path, texts in zip(paths, [GOOD.slice(0, 100), GOOD.slice(100), BAD], strict=True):
        pq.write_table(pa.table({"text": texts}), path)
    assert train_files(paths[:2], paths[2:], SETTINGS).encoded() == train(GOOD, BAD, SETTINGS).encoded()


@needs_sklearn
def test_the_annotator_scores_documents(tmp_path: Path) -> None:
    model, path = train(GOOD, BAD, SETTINGS), tmp_path / "model"
    path.write_bytes(model.encoded())
    config = LinearClassifierConfig(str(path), hashlib.sha256(model.encoded()).hexdigest())
    batch = pa.record_batch({"text": pa.array(["a proof of the lemma", "buy now", "", "…"], pa.large_string())})
    annotator = config.annotator()
    table = annotator.annotate(batch)
    assert table.schema == annotator.schema
    good, bad, *others = table["score"].to_pylist()
    assert good > 0.5 > bad
    assert others == [None, None]


@needs_sklearn
def test_a_model_states_whether_the_optimizer_converged() -> None:
    assert train(GOOD, BAD, SETTINGS).converged
    assert not train(GOOD, BAD, TrainSettings(bits=12, iterations=1)).converged


@needs_sklearn
def test_too_few_documents_are_refused() -> None:
    with pytest.raises(UsageError, match="negative documents would be held out"):
        train(GOOD, BAD.slice(0, 20), SETTINGS)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"body": GOOD, "text": pa.array(range(300))}), path)
    with pytest.raises(ColumnError, match="no column 'content'"):
        train_files([path], [path], SETTINGS, "content")
    with pytest.raises(ColumnError, match="has type int64"):
        train_files([path], [path], SETTINGS)


@given(pairs=st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.95, 1.0]), st.booleans()), min_size=2, max_size=30))
def test_the_area_is_the_share_of_pairs_in_the_right_order(pairs: list[tuple[float, bool]]) -> None:
    good = [score for score, target in pairs if target]
    bad = [score for score, target in pairs if not target]
    if not good or not bad:
        return
    order = [(high > low) + (high == low) / 2 for high, low in itertools.product(good, bad)]
    found = measured(np.array([one for one, _ in pairs], np.float32), np.array([one for _, one in pairs]))
    assert found.roc_auc == pytest.approx(sum(order) / len(order))
    assert found.brier == pytest.approx(
        sum((float(np.float32(score)) - target) ** 2 for score, target in pairs) / len(pairs)
    )


@pytest.mark.parametrize("settings", [{"bits": 7}, {"bits": 27}, {"strength": 0.0}, {"iterations": 0}], ids=str)
def test_invalid_training_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        TrainSettings(**settings)


@pytest.mark.parametrize(("name", "value"), [("model", ""), ("sha256", "1")])
def test_invalid_settings_are_refused(name: str, value: str) -> None:
    table = {"model": "m", "sha256": "0" * 64, name: value}
    with pytest.raises(RecipeError, match=name):
        decoded(table, LinearClassifierConfig, "annotate.classifier_linear")
