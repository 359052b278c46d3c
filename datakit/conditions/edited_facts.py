"""Computes the struct `edited`, from which expressions of select read how a document was edited.

    original_bytes    the bytes of the normalized text
    bytes             the bytes of the edited text; if nothing was edited, those of the normalized one
    removed_share     the share of the normalized text that was masked or cut
    stretches         the number of stretches that were masked or cut
    stretches_NAME    the number of those that the edit NAME masked or cut

The first three need the size of the normalized text. The others are computed from the list of edits alone.

Cost: reading the list of edits and, for one of the first three columns, the column of texts. No text is edited.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.storage.selection.edits import SCHEMA
from datakit.storage.selection.listed_rows import ListedRows

TEXT = "text"
BYTES, ORIGINAL, SHARE, STRETCHES = "bytes", "original_bytes", "removed_share", "stretches"
BY_EDIT = STRETCHES + "_"  # before the name of an edit
OF_TEXTS = (BYTES, ORIGINAL, SHARE)


def fact_names(edits: Sequence[str]) -> list[str]:
    """Return the names of all columns. edits: the names of the recipe's edits."""
    return [*OF_TEXTS, STRETCHES, *(BY_EDIT + name for name in edits)]


class EditedFacts:
    """The facts about the documents of one partition, in order. url: the list of its edits; None if there are none.
    names: the columns that expressions read.
    """

    def __init__(self, url: str | None, dataset: str, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.columns = (TEXT,) if set(OF_TEXTS) & set(names) else ()
        self._listed = ListedRows(url if names else None, dataset, SCHEMA)

    def of(self, table: pa.Table) -> pa.StructArray:
        """Return the facts about the partition's next documents, all of them. table: their ids and, if `columns` names
        it, their texts.
        """
        positions, listed = self._listed.take(table["id"])
        count, stretches = table.num_rows, listed["stretches"].combine_chunks()
        rows = np.repeat(positions, stretches.value_lengths().to_numpy(zero_copy_only=False))
        starts, stops, replacements, edits = stretches.flatten().flatten()
        removed = _sums(rows, stops.to_numpy().astype(np.int64) - starts.to_numpy().astype(np.int64), count)
        added = _sums(rows, _lengths(replacements.fill_null("")), count)
        original = _lengths(table[TEXT]) if self.columns else np.zeros(count, np.int64)
        found = {
            ORIGINAL: original,
            BYTES: original - removed + added,
            SHARE: removed / np.maximum(original, 1),
            STRETCHES: _sums(rows, np.ones(len(rows), np.int64), count),
        }
        columns = [
            found[name] if name in found else _sums(rows, _belonging(edits, name.removeprefix(BY_EDIT)), count)
            for name in self.names
        ]
        return pa.StructArray.from_arrays([pa.array(column) for column in columns], names=list(self.names))

    def expect_end(self) -> None:
        """Raise CorruptError if the list contains rows beyond the end of the partition."""
        self._listed.expect_end()


def _sums(rows: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Return the sum of the values of each row, int64 [count]."""
    found = np.zeros(count, np.int64)
    np.add.at(found, rows, values.astype(np.int64))
    return found


def _belonging(edits: pa.Array, name: str) -> np.ndarray:
    """Return which stretches belong to an edit, bool [S]. edits: the name of each one's edit."""
    return pc.call_function("equal", [edits, pa.scalar(name)]).to_numpy(zero_copy_only=False)


def _lengths(texts: pa.Array | pa.ChunkedArray) -> np.ndarray:
    return pc.call_function("binary_length", [texts]).to_numpy(zero_copy_only=False).astype(np.int64)
