"""Uniting schemas: which types are widened, which are refused, and that values are converted."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from datakit.errors import ColumnError
from datakit.normalize.columns.schema_union import MOST_FIELDS, fit, storable, unify, unite

STRUCT = pa.struct([("a", pa.int64())])

WIDENED: list[tuple[pa.DataType, pa.DataType, pa.DataType | None]] = [
    (pa.null(), STRUCT, STRUCT),
    (pa.int8(), pa.int32(), pa.int32()),
    (pa.uint8(), pa.uint32(), pa.uint32()),
    (pa.int8(), pa.uint32(), pa.int64()),
    (pa.int64(), pa.uint64(), pa.int64()),
    (pa.int64(), pa.float32(), pa.float64()),
    (pa.float32(), pa.float64(), pa.float64()),
    (pa.bool_(), pa.int64(), pa.string()),
    (pa.int64(), pa.string(), pa.string()),
    (pa.date32(), pa.string(), pa.string()),
    (pa.timestamp("s"), pa.timestamp("us"), pa.string()),
    (pa.string(), pa.large_string(), pa.large_string()),
    (pa.int64(), pa.large_string(), pa.large_string()),
    (pa.binary(), pa.large_binary(), pa.large_binary()),
    (pa.binary(), pa.string(), None),
    (pa.list_(pa.null()), pa.list_(pa.int64()), pa.list_(pa.int64())),
    (pa.list_(pa.int64()), pa.large_list(pa.string()), pa.large_list(pa.string())),
    (STRUCT, pa.struct([("b", pa.string())]), pa.struct([("a", pa.int64()), ("b", pa.string())])),
    (STRUCT, pa.struct([("a", pa.string())]), pa.struct([("a", pa.string())])),
    (STRUCT, pa.struct([("a", STRUCT)]), None),
    (STRUCT, pa.int64(), None),
    (STRUCT, pa.list_(STRUCT), None),
    (pa.list_(pa.int64()), pa.int64(), None),
]


@pytest.mark.parametrize(("one", "other", "joined"), WIDENED)
def test_widening_is_symmetric_and_idempotent(one: pa.DataType, other: pa.DataType, joined: pa.DataType | None) -> None:
    assert unify(one, other) == joined
    assert unify(one, one) == one
    if joined is not None and not pa.types.is_struct(joined):
        assert unify(other, one) == joined
    if joined is not None:
        assert unify(joined, one) == unify(joined, other) == joined


@pytest.mark.parametrize(
    ("values", "kind", "target", "expected"),
    [
        ([1, None, -5], pa.int8(), pa.string(), ["1", None, "-5"]),
        ([0.5, 5.0, 1e300], pa.float64(), pa.string(), ["0.5", "5", "1e+300"]),
        ([True, None], pa.bool_(), pa.string(), ["true", None]),
        ([1, None], pa.int64(), pa.float64(), [1.0, None]),
        ([None, None], pa.null(), STRUCT, [None, None]),
        ([{"a": 1}, None], STRUCT, pa.struct([("b", pa.string()), ("a", pa.string())]), [{"b": None, "a": "1"}, None]),
        ([{}, None], pa.struct([]), pa.string(), ["{}", None]),
        ([[1], None, []], pa.list_(pa.int64()), pa.list_(pa.string()), [["1"], None, []]),
        ([[1], None], pa.list_(pa.int64()), pa.large_list(pa.int64()), [[1], None]),
        ([[None], []], pa.list_(pa.null()), pa.list_(pa.string()), [[None], []]),
        ([[{"a": 1}], [None]], pa.list_(STRUCT), pa.list_(pa.struct([("a", pa.float64()), ("c", pa.null())])), None),
    ],
)
def test_values_are_converted(values: list[Any], kind: pa.DataType, target: pa.DataType, expected: Any) -> None:
    expected = [[{"a": 1.0, "c": None}], [None]] if expected is None else expected
    array = pa.array(values, kind)
    assert fit(array, target).type == target
    assert fit(array, target).to_pylist() == expected
    sliced = pa.concat_arrays([array[:1], array])[1:]
    assert fit(sliced, target).to_pylist() == expected, "the same for a slice of an array"


@pytest.mark.parametrize(
    ("one", "other", "largest", "joined"),
    [
        (pa.int64(), pa.float32(), 1 << 53, pa.float64()),
        (pa.int64(), pa.float32(), (1 << 53) + 1, pa.string()),
        (pa.uint64(), pa.float64(), 1 << 63, pa.string()),
        (pa.int64(), pa.uint64(), (1 << 63) - 1, pa.int64()),
        (pa.int64(), pa.uint64(), 1 << 63, pa.string()),
    ],
)
def test_no_digit_of_a_large_integer_is_lost(
    one: pa.DataType, other: pa.DataType, largest: int, joined: pa.DataType
) -> None:
    for path, wrap in (((), lambda kind: kind), (("", "a"), lambda kind: pa.list_(pa.struct([("a", kind)])))):
        facts = {path: largest}
        assert unify(wrap(one), wrap(other), facts) == unify(wrap(other), wrap(one), facts) == wrap(joined)


def test_union_keeps_column_order() -> None:
    one = pa.schema([("b", pa.int64()), ("a", pa.null())])
    two = pa.schema([("c", pa.string()), ("a", pa.bool_()), ("b", pa.float64())])
    union = unite([("one", one), ("two", two)])
    assert union == pa.schema([("b", pa.float64()), ("a", pa.bool_()), ("c", pa.string())])


def test_conflict_names_both_files() -> None:
    schemas = [(name, pa.schema([("meta", kind)])) for name, kind in (("a", pa.null()), ("b", STRUCT), ("c", STRUCT))]
    with pytest.raises(ColumnError, match=r"'meta' is struct<a: int64> in b and int64 in d; .*drop = \['meta'\]"):
        unite([*schemas, ("d", pa.schema([("meta", pa.int64())]))])


def test_conflict_is_reported_once_for_a_file_read_in_slices() -> None:
    slices = [pa.schema([("extra", kind)]) for kind in (pa.struct([]), pa.struct([("a", pa.int64())]))]
    with pytest.raises(ColumnError, match=r"int64 in a\.jsonl and struct<> in b\.jsonl"):
        unite([("a.jsonl", pa.schema([("extra", pa.int64())])), *(("b.jsonl", schema) for schema in slices)])


def test_dictionary_with_many_keys_is_refused() -> None:
    many = pa.struct([(f"key {number}", pa.int64()) for number in range(MOST_FIELDS + 1)])
    with pytest.raises(ColumnError, match=r"'scores' has more than 2000 different keys"):
        unite([("file", pa.schema([("scores", many)]))])


def test_types_parquet_lacks_become_strings() -> None:
    assert storable(pa.null()) == storable(pa.struct([])) == pa.string()
    assert storable(pa.list_(pa.null())) == pa.list_(pa.string())
    assert storable(pa.struct([("a", pa.struct([]))])) == pa.struct([("a", pa.string())])
    assert storable(pa.map_(pa.string(), pa.int64())) == pa.map_(pa.string(), pa.int64())
