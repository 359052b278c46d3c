"""Finds what is suspicious in a group of files although a run accepts it: columns with several types or in some files
only, columns of bytes, empty files, texts in another encoding, and names of evaluation data.

A text that was decoded with the wrong encoding is recognized by pairs of characters that UTF-8 leaves when it is read
as Latin-1 or Windows-1252 (such as `Ã©` for `é`). These pairs hardly occur in texts that are meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from datakit.errors import counted
from datakit.normalize.columns.schema_union import shown
from datakit.normalize.formats import TEXT
from datakit.normalize.inspection.column_reports import ColumnReport, mixed_types, partial_columns
from datakit.normalize.inspection.file_groups import FileGroup
from datakit.normalize.readers.base import Chunk
from datakit.normalize.text_rules import valid_strings
from datakit.printable import one_line

SHOWN = 4  # names in a message
REPLACED = "\ufffd"  # stands for bytes that are not valid UTF-8
WRONG_SHARE = 0.01  # fewer texts that look wrongly decoded are about encodings, or quote such text
SHORT_TEXT = 40  # bytes; texts that are shorter on average are rather names or numbers
WRONG_ENCODING = "[ÃÂÅÐÑ][\u0080-\u00bf\u0152-\u0192\u2018-\u2022]|â€"
_WORDS = "(?:test|valid|validation|val|dev|eval|evaluation)"
EVALUATION = re.compile(rf"(?:^|/){_WORDS}(?:/|[.-][^/]*$)|[._-]{_WORDS}[.-][^/]*$", re.IGNORECASE)


def suspicions(
    group: FileGroup, chunks: Sequence[Chunk], columns: Sequence[ColumnReport], text: str | None
) -> Iterator[str]:
    """Yield messages about a group of files."""
    empty = [info.path for info in group.files if info.size == 0]
    if empty:
        yield f"{counted(len(empty), 'file')} of 0 bytes: {_first(empty)}"
    for name, kinds in mixed_types(chunks).items():
        nested = all("<" in kind for kind in kinds)
        yield f"column {shown(name)} has {'other fields' if nested else _first(kinds)} in other files; a run joins them"
    partial = [shown(name) for name in partial_columns(chunks) if name != text]
    if partial:
        yield f"{counted(len(partial), 'column')} in some of the files only: {_first(partial)}"
    for column in columns:
        if column.name == text and not column.is_bytes and column.mean_bytes < SHORT_TEXT:
            yield f"the texts are short ({column.mean_bytes:,.0f} bytes on average): perhaps this table holds none"
        if column.is_bytes and not (column.name == text and group.format == TEXT):
            yield f"column {shown(column.name)} holds bytes, {column.mean_bytes:,.0f} in a record on average"
    evaluation = [info.path for info in group.files if EVALUATION.search(info.path)]
    if evaluation:
        yield (
            f"{counted(len(evaluation), 'file')} with a name of evaluation data: {_first(evaluation)}; exclude them "
            "if you train on the others"
        )
    if text is not None:
        yield from _encodings(chunks, text)


def _encodings(chunks: Sequence[Chunk], text: str) -> Iterator[str]:
    """Yield messages about texts that were, or will be, decoded wrongly."""
    found = [chunk.table.column(text) for chunk in chunks if text in chunk.table.column_names]
    texts = [_strings(part) for column in found for part in column.chunks if len(part)]
    total = sum(len(part) for part in texts)
    replaced = sum(_matching(part, REPLACED) for part in texts)
    if replaced:
        yield (
            f"{replaced:,} of {total:,} sampled texts hold bytes that are not UTF-8, or U+FFFD in place of such bytes: "
            "perhaps the files have another encoding; convert them to UTF-8"
        )
    wrong = sum(_matching(part, WRONG_ENCODING) for part in texts)
    if wrong > WRONG_SHARE * total:
        yield (
            f"{wrong:,} of {total:,} sampled texts look like UTF-8 that was read as Latin-1 (for example `Ã©`): repair "
            "them first"
        )


def _strings(part: pa.Array) -> pa.LargeStringArray:
    if types.is_binary(part.type) or types.is_large_binary(part.type):
        return valid_strings(part.cast(pa.large_binary()))
    if types.is_string(part.type) or types.is_large_string(part.type):
        return part.cast(pa.large_string())
    return pa.array([], pa.large_string())


def _matching(texts: pa.LargeStringArray, pattern: str) -> int:
    matches = pc.call_function("match_substring_regex", [texts], pc.MatchSubstringOptions(pattern))
    return int(pc.call_function("sum", [matches]).as_py() or 0)


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(one_line(name) for name in names[:SHOWN]) + more
