"""Compiles the passes that search bytes for white space, NUL, lines and CSV records, and that measure the nesting of
JSON. Each pass is compiled once by numba, which caches the machine code on disk, next to the package or in the user's
cache folder. The fork server calls `warm_kernels.warm`, so no task has to compile anything. The passes take plain
arrays and numbers, and allocate nothing. Cost: importing numba takes a quarter of a second. Therefore this module is
imported only when a chunk is read, and never by a command that only plans.

A loop over a slice of an array is vectorized. A loop over indexes in the whole array is not, and takes seven times as
long (measured), because numba allows for negative indexes, which count from the end.
"""

from __future__ import annotations

import numpy as np
from numba import njit

BLANK, NUL, RUN = 1, 2, 4  # the flags that `scan_texts` sets for each text
PLAIN, ODD, DEEP = 0, 1, 2  # the kinds of lines that `scan_lines` distinguishes


@njit(cache=True, nogil=True)
def _space_at(data: np.ndarray, i: int, end: int) -> int:
    """Return the length in bytes of the white-space character that starts at byte `i`, or 0 if there is none."""
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
def _space_before(data: np.ndarray, start: int, i: int) -> int:
    """Return the length in bytes of the white-space character that ends just before byte `i`, or 0 if there is none."""
    for length in range(1, 4):
        if i - length >= start and _space_at(data, i - length, i) == length:
            return length
    return 0


@njit(cache=True, nogil=True)
def _run_length(data: np.ndarray, start: int, end: int, i: int, longest: int) -> int:
    """Return the length in characters of the run of white space around byte `i`; stop counting at `longest` + 1."""
    count, left, right = 0, i, i
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
    return count


@njit(cache=True, nogil=True)
def _in_pair(data: np.ndarray, start: int, end: int, i: int, possible: np.ndarray) -> bool:
    """Return False if byte `i` cannot be in a run of two or more white-space characters."""
    return bool((i + 1 < end and possible[data[i + 1]]) or (i > start and possible[data[i - 1]]))


@njit(cache=True, nogil=True)
def _has_long_run(data: np.ndarray, start: int, end: int, longest: int, possible: np.ndarray) -> bool:
    """Return True if data[start:end] has more than `longest` (at least 1) consecutive white-space characters."""
    i = start
    while i < end:
        if possible[data[i]] and _in_pair(data, start, end, i, possible):
            first = i
            while first > start and first > i - 3 and (data[first] & 0xC0) == 0x80:
                first -= 1
            if _space_at(data, first, end) > i - first and _run_length(data, start, end, first, longest) > longest:
                return True
        i += longest + 1
    return False


@njit(cache=True, nogil=True)
def scan_texts(data: np.ndarray, offsets: np.ndarray, longest: int, possible: np.ndarray, flags: np.ndarray) -> None:
    """Write the flags of each text in `data` to `flags`. longest: the length of the longest run of white space, in
    characters, that does not set RUN. possible: bool [256], True for byte values that occur in white-space characters.
    """
    for index in range(len(flags)):
        start, end = offsets[index], offsets[index + 1]
        zeros = 0
        for octet in data[start:end]:
            zeros += octet == 0
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


@njit(cache=True, nogil=True)
def _is_space(octet: np.uint8) -> bool:
    return octet in (32, 9, 13)


@njit(cache=True, nogil=True)
def nesting(data: np.ndarray, start: int, end: int) -> int:
    """Return the depth of the deepest nesting of brackets in data[start:end], ignoring brackets in strings."""
    depth = deepest = 0
    in_string = escaped = False
    for octet in data[start:end]:
        if escaped:
            escaped = False
        elif in_string:
            escaped = octet == 92
            in_string = octet != 34
        elif octet == 34:
            in_string = True
        elif octet in (123, 91):
            depth += 1
            deepest = max(deepest, depth)
        elif octet in (125, 93):
            depth -= 1
    return deepest


@njit(cache=True, nogil=True)
def scan_lines(
    data: np.ndarray, breaks: np.ndarray, deepest_allowed: int, places: np.ndarray, kinds: np.ndarray
) -> int:
    """Write the bounds and the kind of each nonblank line to `places` and `kinds`; return the number of such lines.

    breaks: the positions of the line ends. places: int64 [2, lines], the start and the end of each line.
    """
    count = 0
    position = 0
    for number in range(len(breaks)):
        start, end = position, int(breaks[number])
        position = end + 1
        while start < end and _is_space(data[start]):
            start += 1
        while end > start and _is_space(data[end - 1]):
            end -= 1
        if start == end:
            continue
        opened = 0
        for octet in data[start:end]:
            opened += (octet == 123) | (octet == 91)
        kind = PLAIN if data[start] == 123 and data[end - 1] == 125 else ODD
        if opened > deepest_allowed and nesting(data, start, end) > deepest_allowed:
            kind = DEEP
        places[0, count], places[1, count], kinds[count] = start, end, kind
        count += 1
    return count


@njit(cache=True, nogil=True)
def find_records(
    data: np.ndarray, dialect: tuple[int, int], limits: tuple[int, int], starts: np.ndarray, sound: np.ndarray
) -> tuple[int, int, int, bool, int]:
    """Write the start of each nonempty CSV record to `starts`, and True to `sound` unless text follows a closing quote.

    dialect: the byte values of the delimiter and the quote; the quote is -1 if fields cannot be quoted. limits: the
    maximum numbers of bytes and of line ends in a quoted field.

    Return the number of records written; the end of the last record that has a line end; the position of the opening
    quote of a field that exceeds a limit or is not closed in `data`, or -1; whether a limit was exceeded; and the start
    of the last field.
    """
    delimiter, quote = dialect
    most_bytes, most_lines = limits
    count = 0
    start = end = field = 0
    opened, lines = -1, 0
    field_begins, closed, bad = True, False, False
    i = 0
    while i < len(data):
        octet = data[i]
        breaks = octet == 10 or (octet == 13 and i + 1 < len(data) and data[i + 1] != 10)
        if opened >= 0:
            lines += breaks
            if octet == quote:
                if i + 1 < len(data) and data[i + 1] == quote:
                    i += 1
                else:
                    opened, closed = -1, True
            elif i - opened > most_bytes or lines > most_lines:
                return count, end, opened, True, field
        elif octet == quote and field_begins and not bad:
            opened, lines, field_begins = i, 0, False
        elif octet == delimiter:
            field_begins, closed, field = True, False, i + 1
        elif breaks:
            if i - start - (octet == 10 and i > start and data[i - 1] == 13) > 0:
                starts[count], sound[count] = start, not bad
                count += 1
            start = end = field = i + 1
            field_begins, closed, bad = True, False, False
        else:
            bad = bad or (closed and octet != 13)
            field_begins = False
        i += 1
    if start < len(data) and (data[start] != 13 or start + 1 < len(data)):  # a final CR alone is not a record
        starts[count], sound[count] = start, not bad
        count += 1
    return count, end, opened, False, field
