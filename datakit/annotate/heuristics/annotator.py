"""The annotator `heuristics`: numbers about the words, lines and repetitions of a document, without a model.

It reads the texts of a batch in the buffers of their column, and gives one row of numbers per document. It decides
nothing: the verdicts of Gopher, C4 and FineWeb are rules over these numbers (see the room `rule_sets`), so a threshold
can change without reading text again. `columns.py` lists the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from datakit.annotate.annotator import TEXT
from datakit.annotate.heuristics.columns import columns
from datakit.annotate.heuristics.kernels.measure import Limits, measure
from datakit.annotate.heuristics.kernels.stop_words import stop_words
from datakit.errors import ColumnError
from datakit.text.string_buffers import string_buffers


class Heuristics:
    """Computes the numbers; every document has a row."""

    name = "heuristics"
    columns: tuple[str, ...] = (TEXT,)
    sparse = False

    def __init__(self, version: int, limits: Limits, lists: Sequence[str]) -> None:
        self.version = version
        self.parameters: dict[str, Any] = {**limits._asdict(), "stop_words": list(lists)}
        self._limits, self._stop_words, self._columns = limits, stop_words(lists), columns(lists)
        self.schema = pa.schema([column.field for column in self._columns])

    def annotate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the numbers of each document. Raises ColumnError if texts are missing, of another type, or null."""
        data, offsets = string_buffers(_texts_of(batch))
        found = measure(data, offsets, self._limits, self._stop_words)
        return pa.RecordBatch.from_arrays([column.values(found) for column in self._columns], schema=self.schema)


def _texts_of(batch: pa.RecordBatch) -> pa.Array:
    if TEXT not in batch.schema.names:
        raise ColumnError(f"a batch has no column {TEXT!r}; heuristics are computed from this column")
    texts = batch.column(TEXT)
    if not pa.types.is_large_string(texts.type) and not pa.types.is_string(texts.type):
        raise ColumnError(f"the column {TEXT!r} has the type {texts.type}; it must be large_string")
    if texts.null_count:
        raise ColumnError(f"the column {TEXT!r} has {texts.null_count:,} nulls; give each document a text")
    return texts
