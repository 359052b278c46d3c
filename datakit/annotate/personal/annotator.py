"""The annotator `personal`: personal data and secrets as spans.

The texts of a batch are searched in the buffers of their column. A match never crosses documents, and findings depend
on the document alone. Numbers, e-mail addresses and IP addresses are found by compiled rules, keys by a compiled check
of their prefix and then RE2, so the time is linear in the size of the text (see `candidates.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.annotate.annotator import SPANS, TEXT
from datakit.annotate.personal.findings import Findings, find
from datakit.annotate.personal.kinds import KINDS
from datakit.errors import ColumnError
from datakit.text.string_buffers import string_buffers

SCHEMA = pa.schema([pa.field("spans", SPANS, nullable=False)])


class PersonalData:
    """Finds personal data. Documents without any get no row."""

    name = "personal"
    columns: tuple[str, ...] = (TEXT,)
    schema = SCHEMA
    sparse = True

    def __init__(self, version: int, kinds: Sequence[str]) -> None:
        self.version = version
        self.parameters: dict[str, Any] = {"kinds": sorted(kinds)}
        self._kinds = frozenset(KINDS.index(kind) for kind in kinds)

    def annotate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the spans of each document. Raises ColumnError if the texts are missing, of another type, or null."""
        data, offsets = string_buffers(_texts_of(batch))
        spans = span_column(find(data, offsets, self._kinds), batch.num_rows)
        return pa.RecordBatch.from_arrays([spans], schema=SCHEMA)


def _texts_of(batch: pa.RecordBatch) -> pa.Array:
    if TEXT not in batch.schema.names:
        raise ColumnError(f"a batch has no column {TEXT!r}; personal data are searched for in this column")
    texts = batch.column(TEXT)
    if not pa.types.is_large_string(texts.type) and not pa.types.is_string(texts.type):
        raise ColumnError(f"the column {TEXT!r} has the type {texts.type}; it must be large_string")
    if texts.null_count:
        raise ColumnError(f"the column {TEXT!r} has {texts.null_count:,} nulls; give each document a text")
    return texts


def span_column(found: Findings, documents: int) -> pa.Array:
    """Return the findings as one list of spans per document."""
    offsets = np.searchsorted(found.documents, np.arange(documents + 1)).astype(np.int32)
    names = pa.array(KINDS, pa.string()).take(pa.array(found.kinds, pa.int64()))
    columns = [pa.array(found.starts.astype(np.uint64)), pa.array(found.stops.astype(np.uint64)), names]
    values = pa.StructArray.from_arrays(columns, fields=list(SPANS.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=SPANS)
