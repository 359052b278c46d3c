"""Defines the white-space characters, independently of Python's version, and which texts are blank."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"


def blank(texts: pa.Array) -> pa.BooleanArray:
    """Return which strings are empty or consist of white space; a null gives a null.

    >>> blank(pa.array(["", " \\u3000", " a "], pa.large_string())).to_pylist()
    [True, True, False]
    """
    trimmed = pc.call_function("utf8_trim", [texts], pc.TrimOptions(WHITE_SPACE))
    return pc.call_function("equal", [pc.call_function("binary_length", [trimmed]), pa.scalar(0)])
