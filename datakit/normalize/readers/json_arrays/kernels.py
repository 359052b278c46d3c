"""Compiles the pass that finds where the elements of a JSON array end. It rewrites the array as JSON Lines in place:
each comma between two elements becomes a line end, and each line end elsewhere becomes a space. So the bytes keep their
offsets, and the reader of JSON Lines can parse them. A line end within a string is not allowed in JSON; it becomes the
control character U+0001, which is not allowed either, so the element stays invalid.

Cost: one look at each byte, at most 1 ns. Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np
from numba import njit

DEPTH, IN_STRING, ESCAPED = 0, 1, 2  # the places of the scanner's state in an int64 array [3]
_NEWLINE, _SPACE, _CONTROL = 10, 32, 1


@njit(cache=True, nogil=True)
def scan_elements(data: np.ndarray, state: np.ndarray, only_first: bool) -> tuple[int, int, int]:
    """Scan `data` from its start, update `state`, and return (number of bytes scanned, end of the last element that
    ends in them with its comma, index of the bracket that closes the array).

    The second number is 0 if no element ends, the third is -1 if the array is not closed. The scan ends at that
    bracket, or if `only_first` after the first comma between elements.
    """
    depth, in_string, escaped = state[0], state[1], state[2]
    last, closed, scanned = 0, -1, len(data)
    for index in range(len(data)):
        octet = data[index]
        if in_string:
            if escaped:
                escaped = 0
            elif octet == 92:  # a backslash
                escaped = 1
            elif octet == 34:  # a quote
                in_string = 0
            if octet == _NEWLINE:
                data[index] = _CONTROL
        elif octet == 34:
            in_string = 1
        elif octet in (91, 123):  # [ {
            depth += 1
        elif octet in (93, 125):  # ] }
            depth -= 1
            if depth == 0:
                closed, scanned = index, index + 1
                break
        elif octet == _NEWLINE:
            data[index] = _SPACE
        elif octet == 44 and depth == 1:  # a comma
            data[index] = _NEWLINE
            last = index + 1
            if only_first:
                scanned = last
                break
    state[0], state[1], state[2] = depth, in_string, escaped
    return scanned, last, closed
