"""Annotator `classifier_linear`: the score of each document according to a linear classifier that `train` has made.

Column: `score`, float32, from 0 to 1; null for a document without words. The whole document is read, whatever its size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from datakit.annotate.annotator import TEXT
from datakit.annotate.classifier.hashed_ngrams import score
from datakit.annotate.classifier.linear_model import LinearModel
from datakit.text.string_buffers import string_buffers
from datakit.text.unicode_words import character_table

SCHEMA = pa.schema([pa.field("score", pa.float32())])


class LinearClassifier:
    """The annotator; see the module's docstring."""

    columns: tuple[str, ...] = (TEXT,)
    schema = SCHEMA
    sparse = False

    def __init__(self, version: int, parameters: dict[str, Any], model: LinearModel) -> None:
        """Keep the model and the parameters, which are the fields of `LinearClassifierConfig`."""
        self.name, self.version, self.parameters = "classifier_linear", version, parameters
        self.bits, self.bias, self.weights = model.bits, model.bias, model.array()

    def annotate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the column of the schema for each document of the batch."""
        data, offsets = string_buffers(batch[TEXT])
        scores, known = np.empty(len(offsets) - 1, np.float32), np.empty(len(offsets) - 1, bool)
        score(data, offsets, character_table(), self.bits, self.weights, self.bias, scores, known)
        return pa.RecordBatch.from_arrays([pa.array(scores, mask=~known)], schema=SCHEMA)
