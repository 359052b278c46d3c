"""Guesses which columns hold the text and the id of a record, and states the evidence for the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa
from pyarrow import types

from datakit.normalize.columns.schema_union import fit_column, is_bytes, shown
from datakit.normalize.inspection.column_reports import ColumnReport
from datakit.normalize.readers.base import Chunk

ID_ENDING = re.compile(r"(?:_id|_ID|[a-z]I[dD])$")  # matches the ends of names such as review_id and reviewId
TEXT_NAMES = ("text", "content", "raw_content", "body", "markdown", "document", "article", "code", "story")
ID_NAMES = ("id", "doc_id", "document_id", "docid", "uuid", "guid", "key", "hash", "sha", "url", "path")
TEXT_TYPES = ("string", "large_string", "binary", "large_binary")
USUAL_SHARE = 0.3  # a column with a usual name is the text if it is at least this large, compared with the largest one


def guess_text(columns: Sequence[ColumnReport]) -> str | None:
    """Return the column that probably holds the text, or None if no column has strings or bytes.

    Of the columns that TEXT_NAMES lists and that have at least 30 % as many bytes as the largest column, the one listed
    first is returned. If there is no such column, the largest column is returned.
    """
    sizes = {column.name: column.weight for column in columns if column.type in TEXT_TYPES}
    most = max(sizes.values(), default=0.0)
    usual = [name for known in TEXT_NAMES for name in sizes if name.lower() == known]
    usual = [name for name in usual if sizes[name] >= USUAL_SHARE * most]
    return next(iter(usual), None) or max(sizes, key=sizes.__getitem__, default=None)


def text_evidence(columns: Sequence[ColumnReport], text: str) -> str:
    """Say why a column is taken for the text: its name, its share of the bytes, and the column that comes next."""
    strings = {column.name: column for column in columns if column.type in TEXT_TYPES}
    if len(columns) == 1 or text not in strings:
        return ""
    total = sum(column.weight for column in columns) or 1.0
    share = strings[text].weight / total
    reasons = ["its name is usual for texts"] if text.lower() in TEXT_NAMES else []
    reasons.append(f"it holds {share:.0%} of the sampled bytes")
    if strings[text].filled < 1:
        reasons.append(f"{strings[text].filled:.0%} of the records have it")
    others = sorted((column for name, column in strings.items() if name != text), key=lambda one: -one.weight)
    if others:
        reasons.append(f"the next column of strings is {shown(others[0].name)} with {others[0].weight / total:.0%}")
    return ", ".join(reasons)


def guess_id(columns: Sequence[ColumnReport], is_unique: Callable[[str], bool] = lambda name: False) -> str | None:
    """Return the column that probably holds the ids, or None. Only columns with a scalar in over 90 % of the records
    are considered. The one that ID_NAMES lists first is returned or, if it lists none of them, the first one whose name
    ends in "id" as a word and whose values are unique.
    """
    plain = {column.name.lower(): column.name for column in columns if column.filled > 0.9 and can_be_id(column)}
    known = next((plain[name] for name in ID_NAMES if name in plain), None)
    return known or next((name for name in plain.values() if ID_ENDING.search(name) and is_unique(name)), None)


def can_be_id(column: ColumnReport) -> bool:
    """Return True if a run accepts the column as the id: it holds neither bytes nor lists or structs."""
    return "<" not in column.type and not column.is_bytes


def has_unique_values(chunks: Sequence[Chunk], name: str) -> bool:
    """Return True if a column holds neither bytes nor floats and has several sampled values, all of them different."""
    columns = [chunk.table.column(name) for chunk in chunks if name in chunk.table.column_names]
    if any(is_bytes(column.type) or types.is_floating(column.type) for column in columns):
        return False
    values = pa.chunked_array(
        [part for column in columns for part in fit_column(column, pa.string()).chunks], pa.string()
    )
    return len(values) > 1 and len(values.unique()) == len(values)
