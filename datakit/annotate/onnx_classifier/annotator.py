"""Implements the annotator `classifier_onnx`: scores each document with a classifier in ONNX format.

Columns: one per label, float32. A score is null if the tokenizer finds no token in the document, special tokens aside.

The model reads one document at a time, without padding, on one thread. In a batch, shorter documents would be padded to
the length of the longest, and the last bits of their scores would depend on their neighbors. Two threads per task would
only take CPUs from other tasks. Of a long document, the model reads the first `max_tokens` tokens of its first
`max_tokens` * BYTES_PER_TOKEN bytes, so the time per document is bounded.

The model is loaded by each task, not by the fork server, because onnxruntime starts threads when it is imported.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.annotate.annotator import TEXT
from datakit.annotate.onnx_classifier.settings import SIGMOID, SOFTMAX, ModelSettings
from datakit.text.string_buffers import string_buffers

BYTES_PER_TOKEN = 32


class OnnxClassifier:
    """The annotator; see the module's docstring."""

    name = "classifier_onnx"
    columns: tuple[str, ...] = (TEXT,)
    sparse = False

    def __init__(self, version: int, parameters: dict[str, Any], settings: ModelSettings) -> None:
        """Keep the parameters, which are the fields of `OnnxClassifierConfig`, and the settings of the model."""
        self.version, self.parameters, self.labels = version, parameters, tuple(parameters["labels"])
        self._settings = settings
        self.schema = pa.schema([pa.field(label, pa.float32()) for label in self.labels])

    @functools.cached_property
    def _model(self) -> Any:
        from datakit.annotate.onnx_classifier.model import load_model

        return load_model(self._settings)

    def annotate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the schema for each document of the batch. Raises what `load_model` and `values_of`
        raise.
        """
        data, offsets = string_buffers(batch[TEXT])
        values, missing = np.zeros((batch.num_rows, len(self.labels))), np.zeros(batch.num_rows, bool)
        limit = self._settings.max_tokens * BYTES_PER_TOKEN
        for row in range(batch.num_rows):
            start, stop = int(offsets[row]), int(offsets[row + 1])
            # A character that the limit cuts is left out; otherwise, texts are valid.
            text = data[start : min(stop, start + limit)].tobytes().decode(errors="ignore")
            found = self._model.values_of(text)
            missing[row] = found is None
            values[row] = 0.0 if found is None else found
        scores = scores_of(values, self.parameters["scores"]).astype(np.float32)
        columns = [pa.array(np.ascontiguousarray(scores[:, i]), mask=missing) for i in range(len(self.labels))]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def scores_of(values: np.ndarray, kind: str) -> np.ndarray:
    """Return the scores of N documents, float64 [N, L]. values: the model's output values, finite float64 [N, L].

    >>> scores_of(np.array([[0.0, 0.0]]), "softmax").tolist(), scores_of(np.array([[0.0]]), "sigmoid").tolist()
    ([[0.5, 0.5]], [[0.5]])
    """
    if kind == SOFTMAX:
        powers = np.exp(values - values.max(axis=1, keepdims=True, initial=-np.inf))
        return powers / powers.sum(axis=1, keepdims=True)
    if kind == SIGMOID:
        small = np.exp(-np.abs(values))  # at most 1, so nothing overflows
        return np.where(values >= 0, 1 / (1 + small), small / (1 + small))
    return values
