"""Applies the text rules: replaces invalid UTF-8, removes NUL, cuts long runs of white space, and marks blank texts for
removal. Few documents need changes. A pass over Arrow's buffers finds these documents, and only they take the slow path
through Python strings. The pass is cheap: Arrow validates UTF-8 at several GB/s, and the search for NUL is vectorized.
A run of more than N white-space characters covers at least N + 1 bytes, so testing every (N + 1)th byte finds it.

White space means Unicode's 25 White_Space code points, unchanged since Unicode 6.3 (2013). The list is fixed here,
since document ids depend on it and implementations differ: `str.isspace` and `re` also accept U+001C to U+001F.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.text.string_buffers import string_buffers
from datakit.text.white_space import WHITE_SPACE

_POSSIBLE = np.isin(np.arange(256), list(WHITE_SPACE.encode()))  # bytes that occur in white-space characters


@dataclass(frozen=True)
class Ruled:
    """Texts with the rules applied. kept: bool [texts], False if blank.

    invalid_utf8, nul, whitespace_runs: the number of texts that each of these rules changed.
    """

    texts: pa.LargeStringArray
    kept: np.ndarray
    invalid_utf8: int
    nul: int
    whitespace_runs: int

    @property
    def blank(self) -> int:
        """The number of blank texts."""
        return len(self.kept) - int(self.kept.sum())


def apply_rules(texts: pa.LargeStringArray | pa.LargeBinaryArray, longest_run: int, valid: bool = False) -> Ruled:
    """Apply the rules to texts as they were read; a null counts as blank. Runs of white space are cut to `longest_run`
    characters. valid: the texts are known to be valid UTF-8.
    """
    # imported only here: it imports numba, which a command that only plans does not need
    from datakit.normalize import kernels

    if texts.null_count:
        texts = pc.fill_null(texts, b"" if pa.types.is_large_binary(texts.type) else "")
    data, offsets = string_buffers(texts)
    flags = np.zeros(len(texts), np.uint8)
    kernels.scan_texts(data, offsets, longest_run, _POSSIBLE, flags)
    invalid = np.zeros(len(texts), bool) if valid else _invalid(texts, data, offsets)
    blank = (flags & kernels.BLANK != 0) & ~invalid
    rows = np.flatnonzero(((flags & (kernels.NUL | kernels.RUN) != 0) & ~blank) | invalid)
    if not len(rows):
        return Ruled(_as_strings(texts), ~blank, 0, 0, 0)
    repaired, runs = _repair(data, offsets, rows, longest_run)
    for index, text in zip(rows.tolist(), repaired, strict=True):
        blank[index] = not text.strip(WHITE_SPACE)
    result = _with_replaced(data, offsets, rows, [text.encode() for text in repaired])
    return Ruled(result, ~blank, int(invalid.sum()), int((flags[rows] & kernels.NUL != 0).sum()), runs)


def valid_strings(texts: pa.LargeStringArray | pa.LargeBinaryArray) -> pa.LargeStringArray:
    """Return the texts as strings, with invalid UTF-8 replaced; nulls remain null."""
    validity, offsets, data = texts.buffers()
    empty = pa.py_buffer(b"")
    strings = pa.LargeStringArray.from_buffers(
        len(texts), offsets or empty, data or empty, validity, texts.null_count, texts.offset
    )
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        values = texts.cast(pa.large_binary()).to_pylist()
        return pa.array([value and value.decode("utf-8", "replace") for value in values], pa.large_string())
    return strings


def warm() -> None:
    """Compile the kernels, or load them from numba's cache on disk, so that no task has to compile them."""
    apply_rules(pa.array(["a", "  "], pa.large_string()), 128)


def _invalid(texts: pa.Array, data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return bool [texts], True for invalid UTF-8. Texts are checked one by one only if any is invalid."""
    result = np.zeros(len(texts), bool)
    try:
        _as_strings(texts).validate(full=True)
    except pa.ArrowInvalid:
        view = data.data
        for index in range(len(texts)):
            try:
                str(view[offsets[index] : offsets[index + 1]], "utf-8")
            except UnicodeDecodeError:
                result[index] = True
    return result


def _as_strings(texts: pa.Array) -> pa.LargeStringArray:
    """Reinterpret binary values as strings, without copying or validating them."""
    _, offsets, data = texts.buffers()
    empty = pa.py_buffer(b"")
    return pa.LargeStringArray.from_buffers(len(texts), offsets or empty, data or empty, None, 0, texts.offset)


def _repair(data: np.ndarray, offsets: np.ndarray, rows: np.ndarray, longest: int) -> tuple[list[str], int]:
    """Return the repaired texts of `rows`, and the number of texts in which a run of white space was shortened. NUL is
    removed first, as this can join runs.
    """
    long_run = re.compile(f"([{WHITE_SPACE}]{{{longest}}})[{WHITE_SPACE}]+")
    view, repaired, runs = data.data, [], 0
    for index in rows.tolist():
        text = str(view[offsets[index] : offsets[index + 1]], "utf-8", "replace").replace("\0", "")
        text, cuts = long_run.subn(r"\1", text)
        runs += cuts > 0
        repaired.append(text)
    return repaired, runs


def _with_replaced(data: np.ndarray, offsets: np.ndarray, rows: np.ndarray, values: list[bytes]) -> pa.LargeStringArray:
    """Return the texts with those in `rows` replaced by `values`; each stretch of bytes between these rows is copied as
    a whole.
    """
    view, parts, start = data.data, [], 0
    lengths = np.diff(offsets)
    for row, value in zip(rows.tolist(), values, strict=True):
        parts += [view[offsets[start] : offsets[row]], value]
        lengths[row] = len(value)
        start = row + 1
    parts.append(view[offsets[start] : offsets[-1]])
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeStringArray.from_buffers(len(lengths), pa.py_buffer(ends), pa.py_buffer(b"".join(parts)))
