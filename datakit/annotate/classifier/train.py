"""Trains datakit's own linear classifier: a logistic regression on hashed words and pairs of words.

`train` needs scikit-learn (the extra `classifier`). One document in ten is held out and is not used for fitting; which
ones depends on their texts only. The held-out documents give the model's ROC AUC, Brier score and calibration. The same
texts in the same order give the same bytes with the same version of scikit-learn.

Memory: 12 bytes per feature, of which English text has one for every 3 bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from datakit.annotate.classifier.hashed_ngrams import (
    LEAST_BITS,
    MOST_BITS,
    PERCENT,
    count_features,
    list_features,
    score,
)
from datakit.annotate.classifier.linear_model import FORMAT, FORMAT_VERSION, Bin, LinearModel, Quality
from datakit.errors import ColumnError, UsageError
from datakit.text.string_buffers import string_buffers
from datakit.text.unicode_words import character_table

HELD_OUT = 10  # one document in so many
LEAST_DOCUMENTS = 10  # held-out documents of each class, and documents to fit
BINS = 10


@dataclass(frozen=True)
class TrainSettings:
    """bits: the model has 2**bits weights. strength: the inverse of the regularization (scikit-learn's `C`).
    iterations: at most so many steps of the optimizer.
    """

    bits: int = 18
    strength: float = 1.0
    iterations: int = 200

    def __post_init__(self) -> None:
        if not LEAST_BITS <= self.bits <= MOST_BITS:
            raise ValueError(f"bits is {self.bits}; it must be from {LEAST_BITS} to {MOST_BITS}")
        if not 0 < self.strength < float("inf"):
            raise ValueError(f"strength is {self.strength}; it must be above 0")
        if self.iterations < 1:
            raise ValueError(f"iterations is {self.iterations}; it must be at least 1")


def train_files(
    positive: Sequence[str], negative: Sequence[str], settings: TrainSettings | None = None, column: str = "text"
) -> LinearModel:
    """Train on the texts of Parquet files. Raises ColumnError if a file has no such column of strings."""
    return train(_texts(positive, column), _texts(negative, column), settings)


def _texts(paths: Sequence[str], column: str) -> pa.ChunkedArray:
    chunks = []
    for path in paths:
        if column not in pq.read_schema(path).names:
            raise ColumnError(f"{path} has no column {column!r}; name the column that holds the texts")
        texts = pq.read_table(path, columns=[column])[column]
        if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
            raise ColumnError(f"the column {column!r} of {path} has type {texts.type}; texts must be strings")
        chunks += texts.cast(pa.large_string()).chunks
    return pa.chunked_array(chunks, pa.large_string())


def train(positive: pa.ChunkedArray, negative: pa.ChunkedArray, settings: TrainSettings | None = None) -> LinearModel:
    """Train a model that gives documents like `positive` scores near 1, and documents like `negative` scores near 0.
    Raises UsageError if there are too few documents, or if scikit-learn is not installed.
    """
    settings = settings or TrainSettings()
    chunks = [*positive.cast(pa.large_string()).chunks, *negative.cast(pa.large_string()).chunks]
    data, offsets = string_buffers(pa.chunked_array(chunks, pa.large_string()))
    targets = np.arange(len(offsets) - 1) < len(positive)
    held_out = _held_out(data, offsets)
    for part, kind in ((targets, "positive"), (~targets, "negative")):
        for rows, purpose in ((part & held_out, "held out"), (part & ~held_out, "used for fitting")):
            if rows.sum() < LEAST_DOCUMENTS:
                raise UsageError(
                    f"only {rows.sum()} {kind} documents would be {purpose}, which is fewer than {LEAST_DOCUMENTS}; "
                    f"give more documents (one in {HELD_OUT} is held out)"
                )
    weights, bias, converged = _fitted(_features(data, offsets, settings.bits), targets, ~held_out, settings)
    scores, known = np.empty(len(targets), np.float32), np.empty(len(targets), bool)
    score(data, offsets, character_table(), settings.bits, weights, bias, scores, known)
    quality = measured(scores[held_out], targets[held_out])
    fitted = int((~held_out).sum())
    return LinearModel(
        FORMAT, FORMAT_VERSION, settings.bits, bias, fitted, converged, quality, weights.astype("<f4").tobytes()
    )


def _held_out(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return which documents are held out, bool [N]: it depends on the hash of their text."""
    ends = offsets.tolist()
    hashes = [xxhash.xxh3_64_intdigest(data[ends[i] : ends[i + 1]].tobytes()) for i in range(len(ends) - 1)]
    return np.array(hashes, np.uint64) % np.uint64(HELD_OUT) == 0


def _features(data: np.ndarray, offsets: np.ndarray, bits: int) -> Any:
    """Return the features of all documents, as a sparse matrix of scipy, float64 [N, 2**bits]."""
    try:
        from scipy.sparse import csr_matrix
    except ImportError as error:
        raise UsageError(_MISSING) from error
    totals = np.zeros(len(offsets) - 1, np.int64)
    count_features(data, offsets, character_table(), totals)
    ends = np.concatenate([[0], np.cumsum(totals)])
    buckets = np.empty(ends[-1], np.uint32)
    list_features(data, offsets, character_table(), bits, ends, buckets)
    values = np.repeat(PERCENT / np.maximum(totals, 1), totals)
    matrix = csr_matrix((values, buckets.astype(np.int32), ends), shape=(len(totals), 1 << bits))
    matrix.sum_duplicates()
    return matrix


_MISSING = "training a classifier needs scikit-learn; run pip install '.[classifier]' in datakit's checkout"


def require_sklearn() -> None:
    """Raise UsageError if scikit-learn is not installed."""
    if find_spec("sklearn") is None:
        raise UsageError(_MISSING)


def _fitted(
    features: Any, targets: np.ndarray, rows: np.ndarray, settings: TrainSettings
) -> tuple[np.ndarray, float, bool]:
    """Return the weights, float32 [2**bits], the bias, and whether the optimizer converged."""
    try:
        from sklearn.exceptions import ConvergenceWarning  # pyright: ignore[reportMissingImports]
        from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingImports]
        from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UsageError(_MISSING) from error
    model = LogisticRegression(C=settings.strength, max_iter=settings.iterations, solver="lbfgs")
    with warnings.catch_warnings(), threadpool_limits(1):  # more threads would sum in another order
        warnings.simplefilter("ignore", ConvergenceWarning)  # the model's file says it
        model.fit(features[rows], targets[rows])
    converged = int(np.max(model.n_iter_)) < settings.iterations
    return np.asarray(model.coef_, np.float32)[0], float(np.asarray(model.intercept_)[0]), converged


def measured(scores: np.ndarray, targets: np.ndarray) -> Quality:
    """Return how well scores, float32 [N], agree with `targets`, bool [N], of which some are True and some False."""
    values, exact = scores.astype(np.float64), targets.astype(np.float64)
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.take(np.cumsum(counts) - (counts - 1) / 2, places)  # equal scores share their mean rank
    positive = int(targets.sum())
    area = (ranks[targets].sum() - positive * (positive + 1) / 2) / (positive * (len(targets) - positive))
    bins = np.minimum((values * BINS).astype(np.int64), BINS - 1)
    calibration = tuple(
        Bin(int((bins == i).sum()), float(values[bins == i].mean()), float(exact[bins == i].mean()))
        for i in range(BINS)
        if (bins == i).any()
    )
    return Quality(len(targets), float(area), float(np.mean((values - exact) ** 2)), calibration)
