"""String columns of every layout give the same texts through their buffers."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest

from datakit.text.string_buffers import string_buffers

TEXTS = ["", "plain", "ä漢字", "", "end"]
KINDS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]


def texts_of(column: pa.Array | pa.ChunkedArray) -> list[str]:
    data, offsets = string_buffers(column)
    assert not data.flags.writeable
    assert not offsets.flags.writeable
    return [bytes(data[start:stop]).decode() for start, stop in pairwise(offsets)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_buffers_hold_the_texts(kind: pa.DataType) -> None:
    column = pa.array([text.encode() for text in TEXTS]).cast(kind)
    assert texts_of(column) == TEXTS
    assert texts_of(column.slice(1, 3)) == TEXTS[1:4]
    assert texts_of(column.slice(2, 0)) == []
    assert texts_of(pa.chunked_array([column[:2], column[2:]])) == TEXTS
    assert texts_of(pa.chunked_array([], kind)) == []
    assert texts_of(pa.array([None, ""], kind)) == ["", ""]


def test_large_strings_are_not_copied() -> None:
    column = pa.array(TEXTS, pa.large_string())
    assert string_buffers(column)[0].__array_interface__["data"][0] == column.buffers()[2].address
