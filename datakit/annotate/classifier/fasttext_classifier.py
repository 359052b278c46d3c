"""Annotator `classifier_fasttext`: the probabilities of chosen labels according to a fastText classifier.

Columns: one per chosen label, float32, named after the label without the prefix `__label__`. A probability is at most
1. It is null if no word of the document is known to the model, so that the model has no answer. With the hierarchical
softmax, a probability below 1e-5 counts as 0, because fastText does not compute it.

As in other programs, a document is passed to the model as one line, in which each newline is a space. A document above
`max_bytes` is sampled (see `pieces` of the fastText reader).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from datakit.annotate.annotator import TEXT
from datakit.annotate.fasttext.model import Model, predict
from datakit.text.string_buffers import string_buffers


class FasttextClassifier:
    """The annotator; see the module's docstring."""

    columns: tuple[str, ...] = (TEXT,)
    sparse = False

    def __init__(self, version: int, parameters: dict[str, Any], model: Model) -> None:
        """Keep the model and the parameters, which are the fields of `FasttextClassifierConfig`."""
        self.name, self.version, self.parameters = "classifier_fasttext", version, parameters
        self.model, self.labels, self.max_bytes = model, tuple(parameters["labels"]), int(parameters["max_bytes"])
        self.schema = pa.schema([pa.field(label, pa.float32()) for label in self.labels])

    def annotate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the schema for each document of the batch."""
        model = self.model
        data, offsets = string_buffers(batch[TEXT])
        found = predict(model, data, offsets, self.max_bytes, len(model.labels))
        missing = found.labels[:, 0] < 0
        columns = []
        for label in self.labels:
            scores = np.where(found.labels == model.labels.index(label), found.scores, np.float32(0)).sum(axis=1)
            columns.append(pa.array(np.minimum(scores, np.float32(1)), mask=missing))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)
