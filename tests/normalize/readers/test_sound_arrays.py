"""Arrays whose offsets, sizes or indices are inconsistent are recognized."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.normalize.readers.sound_arrays import check_arrays


def buffer(*values: int) -> pa.Buffer:
    return pa.py_buffer(np.array(values, np.int32))


STRINGS = pa.Array.from_buffers(pa.string(), 2, [None, buffer(0, 3, 2), pa.py_buffer(b"abc")])
BROKEN = {
    "list": pj.read_json(io.BytesIO(b'{"a": [null, 11, 12]}\n{"a": [21, 22]}\n'))["a"].chunk(0),
    "order": pa.Array.from_buffers(pa.list_(pa.int64()), 2, [None, buffer(0, 3, 1)], children=[pa.array([1, 2, 3])]),
    "string": STRINGS,
    "struct": pa.StructArray.from_arrays([STRINGS], names=["a"]),
    "list of strings": pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), STRINGS),
    "dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 7]), pa.array(["a", "b"]), safe=False),
    "negative index": pa.DictionaryArray.from_arrays(pa.array([0, -1]), pa.array(["a", "b"]), safe=False),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_inconsistent_arrays_are_refused(kind: str) -> None:
    with pytest.raises(pa.ArrowInvalid):
        check_arrays(pa.table({"fine": pa.nulls(len(BROKEN[kind])), "broken": BROKEN[kind]}))


def test_invalid_utf8_is_left_to_others() -> None:
    text = pa.array([b"\xff", b"a"]).view(pa.string())
    check_arrays(pa.table({"a": text, "b": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), text)}))


VALUES = st.recursive(
    st.sampled_from([pa.int64(), pa.string(), pa.large_string(), pa.bool_(), pa.float64(), pa.null()]),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda kind: pa.struct([("a", kind)])),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
    ),
    max_leaves=4,
)


@given(kind=VALUES, rows=st.integers(0, 5), start=st.integers(0, 5))
def test_arrays_of_every_type_and_slices_of_them_pass(kind: pa.DataType, rows: int, start: int) -> None:
    check_arrays(pa.table({"a": pa.nulls(rows, kind).slice(start)}))
