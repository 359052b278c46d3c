"""Finds the documents on which a user's annotator raises an exception, so that they are left out like documents that
kill their process.

A batch that fails is tried again document by document. A document is left out if it fails alone, whatever its batch
was, so the output does not depend on the batches. If the recipe allows no document to be left out, or if all documents
of a batch fail, the exception itself is reported, with its traceback: the function then probably has a mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from datakit.engine.task import QuarantinedRecord, Tolerance
from datakit.errors import UserCodeError


def without_failing(
    documents: pa.Table,
    annotate: Callable[[pa.Table], object],
    places: Sequence[tuple[str, int]],
    tolerance: Tolerance,
) -> tuple[pa.Table, list[QuarantinedRecord]]:
    """Return the documents without those for which `annotate` raises UserCodeError, and a list of these. places: the
    file and the position of each document. Raises UserCodeError if all fail, if none fails alone, or if one fails that
    must not be left out; the message then names it.
    """
    left_out: list[QuarantinedRecord] = []
    failed, first = np.zeros(documents.num_rows, bool), None
    for row, (file, position) in enumerate(places):
        try:
            annotate(documents.slice(row, 1))
        except UserCodeError as error:
            named = f"{file}:{position}"
            first = first or UserCodeError(f"document {named}: {error}")
            if not tolerance.limit and named not in tolerance.listed:
                raise UserCodeError(
                    f"document {named}: {error}\nCorrect the function, or set {tolerance.key} to leave such documents "
                    "out"
                ) from error
            failed[row] = True
            left_out.append(QuarantinedRecord(file, position, _reason(error)))
    if first is None:
        raise UserCodeError("the annotators failed on a batch of documents, but on none of these documents alone")
    if len(left_out) == documents.num_rows > 1:
        raise first
    return documents.filter(pa.array(~failed)), left_out


def _reason(error: UserCodeError) -> str:
    what, cause = str(error).partition(" failed;")[0], type(error.__cause__).__name__
    return f"{what} raised {cause}"
