"""Defines what an annotator is: a pure function from a batch of documents to a table of attributes.

An annotator computes facts and decides nothing: what follows from a fact (drop, mask, keep) is up to rules, so a
threshold can change without reading text again. Its output depends on the document alone, never on the other documents
of the batch; otherwise, the output would depend on how the documents were divided into batches.

Everything that can change the output enters the fingerprint of a step: `name`, `version`, `parameters`, `columns` and
`schema`. If a change of the code changes any output, `version` must rise.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from datakit.text.spans import SPAN, SPANS

__all__ = ["SPAN", "SPANS", "TEXT", "Annotator"]
TEXT = "text"


class Annotator(Protocol):
    """A function from documents to attributes.

    name: the name of the attribute table, in lower case. version: see the module's docstring. parameters: everything
    that was configured, as plain data. columns: the columns that it reads, usually `text`. schema: the columns that it
    returns. sparse: True if documents whose attributes are all null or empty lists get no row in the table.
    """

    name: str
    version: int
    parameters: dict[str, Any]
    columns: tuple[str, ...]
    schema: pa.Schema
    sparse: bool

    def annotate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return one row of attributes, in the form of `schema`, for each document of the batch, in the same order.

        batch: the documents' `columns`; texts are valid UTF-8, of type large_string, and may be empty, but not null.
        """
        ...


@runtime_checkable
class Counting(Protocol):
    """An annotator that also counts its attributes, for the summary of a run."""

    def counts(self, attributes: pa.Table) -> dict[str, int]:
        """Return counts by name, always of the same names. They are summed over all documents. attributes: rows of the
        annotator's table.
        """
        ...


@runtime_checkable
class FileCounting(Protocol):
    """An annotator that also counts what its files hold, which does not depend on documents."""

    def file_counts(self) -> dict[str, int]:
        """Return counts by name. They are the same in all processes, so they are stated once and not summed."""
        ...
