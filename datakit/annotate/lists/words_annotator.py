"""Implements the annotator `words`: finds the occurrences of entries of lists in a text, and counts them.

Columns for each list `NAME`: `NAME`, the number of occurrences; `NAME_entries`, the number of different entries that
occur; `NAME_share`, the share of the text's words (for lists of substrings, of its characters) that lie in an
occurrence; 0 for an empty text. An entry counts wherever it occurs, also inside the occurrence of a longer one.
`spans`: the bytes of all occurrences, with the name of the list as kind; occurrences of one list that overlap are one
span.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.annotate.annotator import SPAN, SPANS, TEXT
from datakit.annotate.lists.characters import list_table
from datakit.annotate.lists.entry_index import build_index
from datakit.annotate.lists.search_kernels import Found, search
from datakit.text.string_buffers import string_buffers


class WordsAnnotator:
    """The annotator; see the module's docstring."""

    name = "words"
    columns: tuple[str, ...] = (TEXT,)
    sparse = False

    def __init__(
        self,
        version: int,
        parameters: dict[str, Any],
        words: Mapping[str, pa.Array],
        substrings: Mapping[str, pa.Array],
    ) -> None:
        """Build the indexes. words, substrings: the entries of the lists of each kind, by name."""
        self.version, self.parameters = version, parameters
        kinds = ((words, True), (substrings, False))
        self._searches = [(tuple(lists), build_index([*lists.values()], of_words), of_words)
                          for lists, of_words in kinds if lists]  # fmt: skip
        self.lists = tuple(sorted([*words, *substrings]))
        fields = [field for name in self.lists for field in _fields(name)]
        self.schema = pa.schema([*fields, pa.field("spans", SPANS, nullable=False)])

    def annotate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the schema for each document of the batch."""
        data, offsets = string_buffers(batch[TEXT])
        columns: dict[str, pa.Array] = {}
        spans = [np.empty((0, 4), np.int64)]
        for names, index, of_words in self._searches:
            found = search(data, offsets, list_table(), index, of_words, len(names))
            for number, name in enumerate(names):
                columns |= _columns(name, found, number)
            numbers = np.array([self.lists.index(name) for name in names])
            spans.append(np.column_stack([found.spans[:, 0], numbers[found.spans[:, 1]], found.spans[:, 2:]]))
        columns["spans"] = self._spans(np.concatenate(spans), batch.num_rows)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def counts(self, attributes: pa.Table) -> dict[str, int]:
        """Return for each list the number of documents in which an entry occurs."""
        return {name: int(pc.call_function("greater", [attributes[name], 0]).to_numpy().sum()) for name in self.lists}

    def _spans(self, spans: np.ndarray, documents: int) -> pa.Array:
        spans = spans[np.lexsort((spans[:, 1], spans[:, 3], spans[:, 2], spans[:, 0]))]
        ends = np.searchsorted(spans[:, 0], np.arange(documents + 1)).astype(np.int32)
        kinds = pa.array(self.lists, pa.string()).take(pa.array(spans[:, 1]))
        columns = [pa.array(spans[:, 2].astype(np.uint64)), pa.array(spans[:, 3].astype(np.uint64)), kinds]
        values = pa.StructArray.from_arrays(columns, fields=[*SPAN])
        return pa.ListArray.from_arrays(pa.array(ends), values, type=SPANS)


def _fields(name: str) -> list[pa.Field]:
    return [
        pa.field(name, pa.uint64(), nullable=False),
        pa.field(f"{name}_entries", pa.uint64(), nullable=False),
        pa.field(f"{name}_share", pa.float64(), nullable=False),
    ]


def _columns(name: str, found: Found, number: int) -> dict[str, pa.Array]:
    share = np.where(found.totals > 0, found.covered[:, number] / np.maximum(found.totals, 1), 0.0)
    return {
        name: pa.array(found.occurrences[:, number].astype(np.uint64)),
        f"{name}_entries": pa.array(found.distinct[:, number].astype(np.uint64)),
        f"{name}_share": pa.array(share),
    }
