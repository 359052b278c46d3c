"""Calls a user's annotator, and refuses one whose output for a document depends on its neighbors in the batch.

The check is a sample: the first, the middle and the last document of each batch are given to the function again, each
alone, and the outputs must be equal. This finds functions that compare documents with one another, keep state between
calls, or draw random numbers. It costs three calls with one document for each batch of 4 MiB.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.annotate.annotator import TEXT
from datakit.annotate.user.config import UserSettings
from datakit.annotate.user.describe import declared, described
from datakit.engine.task import resolve
from datakit.engine.user_code import user_code
from datakit.engine.user_modules import hash_of, look_beside
from datakit.errors import ChangedInputError, RecipeError, UserCodeError, counted
from datakit.text.edited_texts import Stretches, first_misplaced
from datakit.text.spans import SPANS


class MisplacedSpanError(ValueError):
    """A span that is incomplete, or that does not fit its text."""


class UserAnnotator:
    """A user's function as an annotator; implements `Annotator`."""

    def __init__(self, settings: UserSettings) -> None:
        """Import the function. Raises RecipeError if it cannot be imported, and ChangedInputError if it is not what the
        check of the recipe has found.
        """
        if settings.folder:
            look_beside(settings.folder)
            importlib.invalidate_caches()
        declaration = declared(settings.function)
        found = described(declaration)
        same = (found.version, found.columns, found.schema, found.sparse) == (
            settings.version, settings.columns, settings.schema, settings.sparse,
        )  # fmt: skip
        if not same or hash_of(settings.function, settings.folder) != settings.source:
            raise ChangedInputError(
                f"the file of annotator {settings.name!r} ({settings.function}) is not the one that was there when the "
                "run was planned; run again, and on a cluster, let all nodes read the same file"
            )
        self.name, self.version, self.parameters = settings.name, settings.version, settings.parameters
        self.columns, self.schema, self.sparse = declaration.columns, declaration.schema, declaration.sparse
        self._function, self._described = resolve(settings.function), f"annotator {self.name!r} ({settings.function})"

    def annotate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the function's attributes. Raises UserCodeError if the function fails."""
        received = (
            f"a pyarrow.RecordBatch of {counted(batch.num_rows, 'row')} with the columns {', '.join(self.columns)}"
        )
        with user_code(self._described, received, self.columns):
            return self._function(batch, **self.parameters)

    def check_spans(self, batch: pa.RecordBatch, found: pa.RecordBatch) -> None:
        """Raise UserCodeError if a span does not fit its text, so that an edit could not use it. found: what `annotate`
        returned for the batch, with the columns of `schema`.
        """
        for field in self.schema:
            if field.type.equals(SPANS) and (problem := span_problem(batch[TEXT], found[field.name])):
                message = f"{self._described} failed; its column {field.name!r} has a span that {problem}"
                raise UserCodeError(message) from MisplacedSpanError(problem)

    def check_neighbors(self, batch: pa.RecordBatch, found: pa.RecordBatch, ids: pa.Array) -> None:
        """Raise RecipeError if the attributes of a document in the sample are others if it is annotated alone.

        found: what `annotate` returned for the batch, with the columns of `schema`. ids: the documents' ids.
        """
        rows = batch.num_rows
        for row in sorted({0, rows // 2, rows - 1}) if rows > 1 else ():
            alone = self.annotate(batch.slice(row, 1))
            together = found.slice(row, 1)
            if not _same(alone, together):
                raise RecipeError(
                    f"{self._described}: the output for document {ids[row].as_py()} depends on its neighbors: it is "
                    "another one if the function gets this document alone; compute each row from its own document, "
                    "keep no state between calls, and draw no random numbers"
                )


def span_problem(texts: pa.Array, column: pa.ListArray) -> str:
    """Return what is wrong with a column of spans of these texts; "" if nothing is."""
    spans = column.flatten()
    starts, stops, kinds = spans.flatten()
    if spans.null_count or starts.null_count or stops.null_count or kinds.null_count:
        return "is null, or lacks its start, stop or kind"
    rows = np.repeat(np.arange(len(column)), column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
    first, last = (
        part.to_numpy(zero_copy_only=False).astype(np.int64) for part in (starts, stops)
    )  # 2^63 turns negative
    wrong = first_misplaced(texts, Stretches(rows, first, last, pa.nulls(len(rows), pa.string())))
    return "is empty, outside the text or divides a character; count bytes, not characters" if wrong >= 0 else ""


def _same(first: Any, second: pa.RecordBatch) -> bool:
    """Return True if two batches are equal; NaN equals NaN. The first one has not been checked yet."""
    if not isinstance(first, pa.RecordBatch) or not first.schema.equals(second.schema):
        return False
    return repr(first.to_pylist()) == repr(second.to_pylist())
