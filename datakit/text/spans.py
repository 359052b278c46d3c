"""Defines how stretches of texts are stored in Arrow columns.

A position is a byte of the text's UTF-8 form. The spans of a document are sorted by (start, stop, kind).
"""

from __future__ import annotations

import pyarrow as pa

SPAN = pa.struct(  # the bytes [start, stop) of a text
    [
        pa.field("start", pa.uint64(), nullable=False),
        pa.field("stop", pa.uint64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
    ]
)
SPANS = pa.list_(pa.field("element", SPAN, nullable=False))
