"""Defines the columns of what the search for substrings exchanges between tasks. The driver imports this module, so it
imports no kernels.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

STRETCH = pa.schema(
    [
        ("anchor", pa.uint64()),
        ("high", pa.uint64()),
        ("low", pa.uint64()),
        ("row", pa.uint64()),
        ("start", pa.uint32()),
        ("substrings", pa.uint32()),
        ("repeats", pa.uint32()),
        ("edges", pa.uint8()),
        ("search", pa.uint8()),
    ]
)
UNDECIDED = pa.schema(  # consecutive substrings of which it is still unknown whether they are copies
    [
        ("anchor", pa.uint64()),
        ("row", pa.uint64()),
        ("start", pa.uint32()),
        ("substrings", pa.uint32()),
        ("search", pa.uint8()),
    ]
)
TEXT = pa.schema(  # the same, with their bytes
    [
        ("row", pa.uint64()),
        ("start", pa.uint32()),
        ("text", pa.binary()),
        ("search", pa.uint8()),
    ]
)
SUBSTRING = pa.schema(
    [
        ("high", pa.uint64()),
        ("low", pa.uint64()),
        ("row", pa.uint64()),
        ("start", pa.uint32()),
        ("edges", pa.uint8()),
        ("search", pa.uint8()),
    ]
)
STRETCH_BYTES, UNDECIDED_BYTES, SUBSTRING_BYTES = 46, 25, 30  # the sizes of rows
STRETCH_ORDER, SUBSTRING_ORDER = ("anchor", "high", "low"), ("high", "low")  # how they are sorted to be compared
RANGE_ORDER = ("row", "start")  # how undecided substrings are sorted to read their texts


def table_of(schema: pa.Schema, *columns: np.ndarray) -> pa.Table:
    """Return a table with copies of these columns, cast to the types of a schema."""
    pairs = zip(columns, schema, strict=True)
    arrays = [pa.array(column.astype(field.type.to_pandas_dtype())) for column, field in pairs]
    return pa.Table.from_arrays(arrays, schema=schema)


def sums(search: np.ndarray, values: np.ndarray, searches: int) -> np.ndarray:
    """Return the sum of the values of each search: int64 [searches]."""
    return np.bincount(search, values, searches).astype(np.int64)  # exact below 2**53
