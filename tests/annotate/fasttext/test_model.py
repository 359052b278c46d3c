"""Predictions are those of fastText's rules, for every kind of model; other files are refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.annotate.fasttext.model import Model, load_model, predict, read_model
from datakit.errors import ChangedInputError, NotFoundError, UnreadableError
from datakit.text.string_buffers import string_buffers
from tests.support.annotate.fasttext_files import (
    HIERARCHICAL_SOFTMAX,
    NEGATIVE_SAMPLING,
    ONE_VERSUS_ALL,
    SOFTMAX,
    Spec,
    Written,
    probabilities,
    write,
)

WHOLE = 1 << 40
FIVE = {"labels": tuple(f"__label__{name}" for name in "abcde"), "counts": (50, 21, 13, 7, 4)}
SPECS = {
    "softmax": Spec(),
    "one against all": Spec(loss=ONE_VERSUS_ALL, **FIVE),
    "negative sampling": Spec(loss=NEGATIVE_SAMPLING),
    "hierarchical": Spec(loss=HIERARCHICAL_SOFTMAX, **FIVE),
    "one label": Spec(loss=HIERARCHICAL_SOFTMAX, labels=("__label__x",), counts=(3,)),
    "n-grams of words": Spec(word_ngrams=3, longest=0, shortest=0),
    "both n-grams": Spec(word_ngrams=2, shortest=1, longest=2),
    "words only": Spec(longest=0, buckets=0),
    "quantized": Spec(quantized=True),
    "quantized with norms": Spec(quantized=True, norms=True, width=2, dimension=5),
    "quantized output": Spec(quantized=True, quantized_output=True, norms=True),
    "pruned": Spec(quantized=True, kept=(3, 11, 0), word_ngrams=2),
    "all buckets pruned": Spec(quantized=True, kept=()),
}
WORDS = st.sampled_from(
    ["the", "la", "日本", "é", "</s>", "__label__en", "__label__xx", "x", "日", "thé", "🙂a\u0301", "\0"]
)
TEXTS = st.one_of(
    st.lists(st.tuples(WORDS, st.sampled_from(" \t\n\v\f\r\0")), max_size=8).map(
        lambda found: "".join(map("".join, found))
    ),
    st.text(max_size=30),
)


def model_of(written: Written) -> Model:
    return read_model(np.frombuffer(written.data, np.uint8), "test model")


def predicted(model: Model, texts: list[str], k: int = 1, max_bytes: int = WHOLE) -> list[dict[str, float]]:
    data, offsets = string_buffers(pa.array(texts, pa.large_string()))
    found = predict(model, data, offsets, max_bytes, k)
    return [
        {model.labels[label]: float(score) for label, score in zip(*pair, strict=True) if label >= 0}
        for pair in zip(found.labels, found.scores, strict=True)
    ]


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, max_size=4))
def test_probabilities_are_those_of_the_rules(name: str, texts: list[str]) -> None:
    written = write(SPECS[name])
    tolerance = 1 / 64 if name in ("one against all", "negative sampling") else 1e-4  # the former use a coarse table
    labels = [label.removeprefix("__label__") for label in written.spec.labels]
    for text, found in zip(texts, predicted(model_of(written), texts, len(labels)), strict=True):
        expected = probabilities(written, [text])
        if expected is None:
            assert found == {}
        else:
            assert [found.get(label, 0.0) for label in labels] == pytest.approx(expected, abs=tolerance)
            assert list(found.values()) == sorted(found.values(), reverse=True)


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=20, deadline=None)
@given(texts=st.lists(TEXTS, min_size=2, max_size=4))
def test_a_prediction_depends_on_its_document_only(name: str, texts: list[str]) -> None:
    model = model_of(write(SPECS[name]))
    assert predicted(model, texts) == [predicted(model, [text])[0] for text in texts]


@settings(max_examples=50, deadline=None)
@given(text=TEXTS)
def test_the_best_labels_are_the_first_of_all_labels(text: str) -> None:
    model = model_of(write(SPECS["hierarchical"]))
    everything = list(predicted(model, [text], 5)[0].items())
    for k in range(1, 5):
        assert list(predicted(model, [text], k)[0].items()) == everything[:k]


def test_a_long_document_is_read_as_eight_pieces() -> None:
    written = write(Spec())
    words = " ".join(f"mot{i} 日本é" for i in range(500))
    data = words.encode()
    pieces = []
    for i in range(8):
        begin = i * (len(data) - 128) // 7
        stop = begin + 128
        while begin < len(data) and data[begin] & 0xC0 == 0x80:
            begin += 1
        while stop < len(data) and data[stop] & 0xC0 == 0x80:
            stop += 1
        pieces.append(data[begin:stop].decode())
    expected = probabilities(written, pieces)
    (found,) = predicted(model_of(written), [words], 3, 1024)
    assert expected is not None
    assert [found[label] for label in ("en", "fr", "ja")] == pytest.approx(expected, abs=1e-4)
    assert found != predicted(model_of(written), [words], 3)[0]


@pytest.mark.parametrize(
    "text",
    ["a" * 1_000_000, "a\n" * 500_000, "\n" * 1_000_000, "\0" * 1_000_000, "🙂" * 250_000, "\u0301" * 500_000],
    ids=["one word", "short lines", "newlines", "NUL", "emoji", "marks"],
)
def test_hostile_documents_have_predictions(text: str) -> None:
    model = model_of(write(SPECS["both n-grams"]))
    (found,) = predicted(model, [text], 3)
    assert sum(found.values()) == pytest.approx(1, abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(SPECS)), share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused(name: str, share: float) -> None:
    data = write(SPECS[name]).data
    with pytest.raises(UnreadableError, match="test model is not a valid fastText model"):
        read_model(np.frombuffer(data[: int(share * len(data))], np.uint8), "test model")


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(SPECS)), place=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255))
def test_a_damaged_file_is_refused_or_gives_predictions(name: str, place: float, value: int) -> None:
    data = bytearray(write(SPECS[name]).data)
    data[int(place * min(len(data), 600))] = value
    try:
        model = read_model(np.frombuffer(bytes(data), np.uint8), "test model")
    except UnreadableError:
        return
    (found,) = predicted(model, ["the la 日本 mot"], len(model.labels))
    assert all(0 <= score <= 1.0001 for score in found.values())


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (Spec(model=1), "vectors of words"),
        (Spec(version=13), "version 13"),
        (Spec(loss=9), "loss 9"),
        (Spec(buckets=0), "buckets"),
        (Spec(kept=(1, 2)), "not quantized"),
        (Spec(counts=(3, 2, -1)), "invalid count"),
    ],
    ids=str,
)
def test_the_refusal_names_the_problem(spec: Spec, problem: str) -> None:
    with pytest.raises(UnreadableError, match=problem):
        model_of(write(spec))


def test_bytes_after_the_end_are_refused() -> None:
    data = np.frombuffer(write(Spec()).data + b"x", np.uint8)
    with pytest.raises(UnreadableError, match="1 bytes follow"):
        read_model(data, "test model")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"not a model, but long enough to have a header" * 10)
    with pytest.raises(UnreadableError, match="magic number"):
        load_model(str(path), hashlib.sha256(path.read_bytes()).hexdigest())
    path.write_bytes(b"")
    with pytest.raises(UnreadableError, match="it ends inside its header"):
        load_model(str(path), hashlib.sha256(b"").hexdigest())


def test_a_file_with_another_sha256_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(write(Spec()).data)
    with pytest.raises(ChangedInputError, match="is expected"):
        load_model(str(path), "0" * 64)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(NotFoundError, match=r"/nowhere/model\.bin does not exist"):
        load_model("/nowhere/model.bin", "0" * 64)


def test_a_model_is_loaded_once(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(write(Spec()).data)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert load_model(str(path), sha256) is load_model(str(path), sha256)


@pytest.mark.parametrize("k", [0, 4])
def test_k_must_not_exceed_the_labels(k: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 3"):
        predicted(model_of(write(Spec(loss=SOFTMAX))), ["the"], k)
