"""Writes a JSON value on one line, so that the parsers of JSON Lines can read it."""

from __future__ import annotations

import numpy as np


def on_one_line(data: bytes) -> bytes | None:
    """Return a JSON value with a space for each line end between its tokens, or None if it is blank or cannot be a
    single value. Every byte keeps its place, but for white space around the value. The value is not parsed.

    >>> on_one_line(b'{"a":\\n 1}\\n'), on_one_line(b"1\\n, 2")
    (b'{"a":  1}', None)
    """
    # imported only here: it imports numba, which a command that only plans does not need
    from datakit.normalize.readers.json_arrays.kernels import scan_elements

    buffer = bytearray(data)
    _, last, closed = scan_elements(np.frombuffer(buffer, np.uint8), np.array([1, 0, 0], np.int64), False)
    line = bytes(buffer).strip(b" \t\r")
    return None if last or closed >= 0 or not line or b"\n" in line else line
