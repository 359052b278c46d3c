"""The text rules: invalid UTF-8 is replaced, NUL removed, a long run of white space cut, blank text dropped.

Almost no document needs any of this, so one pass over Arrow's buffers finds those that do, and only they take the slow
path through Python strings. The pass is cheaper than its size suggests: UTF-8 is validated by Arrow (several GB/s), NUL
is a vectorized search, and a run of more than N white-space characters covers at least N + 1 bytes, so looking at every
(N + 1)th byte finds each of them.

White space is Unicode's White_Space property: 25 code points, unchanged since Unicode 6.3 (2013), frozen here because
`str.isspace`, `re` and other engines each mean something else, and a document's id depends on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
BLANK, NUL, RUN = 1, 2, 4


@dataclass(frozen=True)
class Ruled:
    """Texts after the rules. kept: which are not blank. The counts are documents."""

    texts: pa.LargeStringArray
    kept: np.ndarray
    invalid_utf8: int
    nul: int
    whitespace_runs: int

    @property
    def blank(self) -> int:
        """Documents without any text."""
        return len(self.kept) - int(self.kept.sum())


def apply_rules(texts: pa.LargeStringArray | pa.LargeBinaryArray, longest_run: int) -> Ruled:
    """Texts as they were read (a null is a blank) -> texts as they are written."""
    if texts.null_count:
        texts = pc.fill_null(texts, b"" if pa.types.is_large_binary(texts.type) else "")
    data, offsets = buffers_of(texts)
    flags = np.zeros(len(texts), np.uint8)
    _scan(data, offsets, longest_run, flags)
    invalid = _invalid(texts, data, offsets)
    blank = (flags & BLANK != 0) & ~invalid
    wanting = np.flatnonzero(((flags & (NUL | RUN) != 0) & ~blank) | invalid)
    if not len(wanting):
        return Ruled(_as_strings(texts), ~blank, 0, 0, 0)
    mended, runs = _mend(data, offsets, wanting, longest_run)
    for index, text in zip(wanting.tolist(), mended, strict=True):
        blank[index] = not text.strip(WHITE_SPACE)
    arrays = _with_replaced(data, offsets, wanting, [text.encode() for text in mended])
    return Ruled(arrays, ~blank, int(invalid.sum()), int((flags[wanting] & NUL != 0).sum()), runs)


def warm() -> None:
    """Compile the kernels, or load them from numba's cache on disk, so that no task does."""
    apply_rules(pa.array(["a", "  "], pa.large_string()), 128)


def buffers_of(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(data uint8, offsets int64 [N + 1]) of a large_string or large_binary array, as read-only views."""
    if not len(texts):
        return _view(b"", np.uint8), _view(bytes(8), np.int64)
    _, offsets, data = texts.buffers()
    places = _view(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return _view(data if data is not None else b"", np.uint8), places


def _view(buffer: pa.Buffer | bytes, kind: type[np.generic]) -> np.ndarray:
    """Always read-only, whatever the buffer: numba compiles a function once for each kind of array."""
    view = np.frombuffer(buffer, kind)
    view.flags.writeable = False
    return view


def _invalid(texts: pa.Array, data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """bool [N]: which texts are not UTF-8. One fast pass over all; only if that fails, one by one."""
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
    """The same buffers, called text."""
    _, offsets, data = texts.buffers()
    empty = pa.py_buffer(b"")
    return pa.LargeStringArray.from_buffers(len(texts), offsets or empty, data or empty, None, 0, texts.offset)


def _mend(data: np.ndarray, offsets: np.ndarray, wanting: np.ndarray, longest: int) -> tuple[list[str], int]:
    """The mended texts, and in how many a run was cut. NUL goes first, since removing it can join two runs."""
    long_run = re.compile(f"([{WHITE_SPACE}]{{{longest}}})[{WHITE_SPACE}]+")
    view, mended, runs = data.data, [], 0
    for index in wanting.tolist():
        text = str(view[offsets[index] : offsets[index + 1]], "utf-8", "replace").replace("\0", "")
        text, cuts = long_run.subn(r"\1", text)
        runs += cuts > 0
        mended.append(text)
    return mended, runs


def _with_replaced(
    data: np.ndarray, offsets: np.ndarray, places: np.ndarray, values: list[bytes]
) -> pa.LargeStringArray:
    """The array with `values` at `places`; what lies between is copied in one piece."""
    view, pieces, start = data.data, [], 0
    lengths = np.diff(offsets)
    for place, value in zip(places.tolist(), values, strict=True):
        pieces += [view[offsets[start] : offsets[place]], value]
        lengths[place] = len(value)
        start = place + 1
    pieces.append(view[offsets[start] : offsets[-1]])
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeStringArray.from_buffers(len(lengths), pa.py_buffer(ends), pa.py_buffer(b"".join(pieces)))


def _possible_octets() -> np.ndarray:
    """bool [256]: the bytes that occur in the UTF-8 form of a white-space character."""
    table = np.zeros(256, np.bool_)
    table[list(WHITE_SPACE.encode())] = True
    return table


_POSSIBLE = _possible_octets()


@njit(cache=True, nogil=True)
def _space_at(data, i, end):  # pragma: no cover - compiled
    """The length in bytes of the white-space character that begins at `i`, or 0."""
    octet = data[i]
    if octet == 32 or 9 <= octet <= 13:
        return 1
    if octet == 0xC2 and i + 1 < end and (data[i + 1] == 0x85 or data[i + 1] == 0xA0):
        return 2
    if i + 2 >= end:
        return 0
    second, third = data[i + 1], data[i + 2]
    if octet == 0xE2 and second == 0x80:
        return 3 if 0x80 <= third <= 0x8A or third in (0xA8, 0xA9, 0xAF) else 0
    if octet == 0xE2 and second == 0x81:
        return 3 if third == 0x9F else 0
    if octet == 0xE1 and second == 0x9A:
        return 3 if third == 0x80 else 0
    if octet == 0xE3 and second == 0x80:
        return 3 if third == 0x80 else 0
    return 0


@njit(cache=True, nogil=True)
def _space_before(data, start, i):  # pragma: no cover - compiled
    """The length in bytes of the white-space character that ends before `i`, or 0."""
    for length in range(1, 4):
        if i - length >= start and _space_at(data, i - length, i) == length:
            return length
    return 0


@njit(cache=True, nogil=True)
def _has_long_run(data, start, end, longest, possible):  # pragma: no cover - compiled
    """Whether more than `longest` white-space characters follow one another in data[start:end]."""
    i = start
    while i < end:
        if possible[data[i]]:
            first = i
            while first > start and first > i - 3 and (data[first] & 0xC0) == 0x80:
                first -= 1
            if _space_at(data, first, end) > i - first:
                count, left, right = 0, first, first
                length = _space_before(data, start, left)
                while length > 0 and count <= longest:
                    count += 1
                    left -= length
                    length = _space_before(data, start, left)
                while right < end and count <= longest:
                    length = _space_at(data, right, end)
                    if length == 0:
                        break
                    count += 1
                    right += length
                if count > longest:
                    return True
        i += longest + 1
    return False


@njit(cache=True, nogil=True)
def _scan_texts(data, offsets, longest, possible, flags):  # pragma: no cover - compiled
    for index in range(len(flags)):
        start, end = offsets[index], offsets[index + 1]
        zeros = 0
        for i in range(start, end):
            zeros += data[i] == 0
        i = start
        while i < end:
            length = _space_at(data, i, end)
            if length == 0:
                break
            i += length
        if i >= end:
            flags[index] |= BLANK
        if zeros:
            flags[index] |= NUL
        if zeros or _has_long_run(data, start, end, longest, possible):
            flags[index] |= RUN


def _scan(data: np.ndarray, offsets: np.ndarray, longest: int, flags: np.ndarray) -> None:
    _scan_texts(data, offsets, np.int64(longest), _POSSIBLE, flags)
