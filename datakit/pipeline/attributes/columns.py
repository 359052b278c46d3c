"""Lists the columns of attribute tables, and reads from each what can be counted: numbers, labels, or both.

A *number* is a value, or the number of elements of a list. A *label* is a string or a truth value; the labels of a list
are its elements or, if these have fields, each element's first field of type string, such as the kind of a span.
"""

# pyright: reportAttributeAccessIssue=false
# Arrow adds the functions of pyarrow.compute when it is imported.
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.errors import CorruptError, UsageError, suggestion
from datakit.pipeline.attributes.tables import Annotated, AttributeFile
from datakit.storage.parquet import iterate_shard, open_shard

NUMBER, LABEL, LIST, OTHER = "number", "label", "list", "other"


@dataclass(frozen=True)
class AttributeColumn:
    """A column of an annotator's tables. type: its Arrow type."""

    annotator: str
    name: str
    type: pa.DataType

    def __str__(self) -> str:
        return f"{self.annotator}.{self.name}"

    @property
    def kind(self) -> str:
        """The kind of the values: "number", "label", "list" or "other"."""
        if pa.types.is_integer(self.type) or pa.types.is_floating(self.type):
            return NUMBER
        if pa.types.is_boolean(self.type) or _is_text(self.type):
            return LABEL
        return LIST if pa.types.is_list(self.type) or pa.types.is_large_list(self.type) else OTHER

    @property
    def whole(self) -> bool:
        """True if its numbers are integers."""
        return not pa.types.is_floating(self.type)

    @property
    def label_field(self) -> str | None:
        """The field that holds the labels of a list's elements; None if the column is no list of structs."""
        if self.kind != LIST or not pa.types.is_struct(self.type.value_type):
            return None
        return next((one.name for one in self.type.value_type if _is_text(one.type)), None)

    @property
    def has_labels(self) -> bool:
        """True if `labels` can return any."""
        texts = self.kind == LIST and _is_text(self.type.value_type)
        return self.kind == LABEL or texts or self.label_field is not None

    def rounded(self, value: float) -> float:
        """Return the value of the column's type that is nearest to `value`, so that 0.4 equals a float32 of 0.4."""
        return float(np.float32(value)) if pa.types.is_float32(self.type) else float(value)

    def shown(self, value: float) -> float:
        """Return the shortest decimal number that identifies a value of the column: for a float32, 0.4 and not
        0.4000000059604645.
        """
        return float(str(np.float32(value))) if pa.types.is_float32(self.type) else float(value)

    def numbers(self, values: pa.ChunkedArray) -> np.ndarray:
        """Return the number of each row, float64 [N]; NaN for null. Integers above 2**53 are rounded."""
        found = pc.call_function("list_value_length", [values]) if self.kind == LIST else values
        return found.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)

    def labels(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return all labels without nulls, as strings; those of lists are concatenated."""
        if self.kind == LIST:
            values = pc.call_function("list_flatten", [values])
            if self.label_field is not None:
                values = pc.struct_field(values, self.label_field)
        return values.cast(pa.large_string()).drop_null()

    def has_label(self, values: pa.ChunkedArray, label: str) -> np.ndarray:
        """Return which rows have this label, bool [N]."""
        if self.kind == LABEL:
            return pc.fill_null(pc.equal(values.cast(pa.large_string()), label), False).to_numpy(zero_copy_only=False)
        mask, inside = np.zeros(len(values), bool), pc.list_flatten(values)
        if self.label_field is not None:
            inside = pc.struct_field(inside, self.label_field)
        rows = pc.list_parent_indices(values).to_numpy(zero_copy_only=False)
        equal = pc.fill_null(pc.equal(inside.cast(pa.large_string()), label), False)
        mask[rows[equal.to_numpy(zero_copy_only=False)]] = True
        return mask


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def columns_of(found: Annotated) -> list[AttributeColumn]:
    """Return the columns of all tables, without the ids, in the order of annotators and columns."""
    first = {file.annotator: file for file in reversed(found.files)}
    columns = list[AttributeColumn]()
    for annotator, file in sorted(first.items()):
        with open_shard(file.url) as shard:
            fields = [one for one in shard.schema_arrow if one.name != "id"]
        columns += [AttributeColumn(annotator, one.name, one.type) for one in fields]
    return columns


def find_column(name: str, columns: Sequence[AttributeColumn]) -> AttributeColumn:
    """Return the column with this name: `annotator.column`, or only one of the two if this is unambiguous. Raises
    UsageError.
    """
    exact = [one for one in columns if str(one) == name]
    matching = exact or [one for one in columns if name in (one.annotator, one.name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(f"--column {name} could be {', '.join(map(str, matching))}; name one of them")
    raise UsageError(f"--column {name}: there is no such column; {suggestion(name, map(str, columns))}")


def batches(
    files: Sequence[AttributeFile], columns: Sequence[AttributeColumn]
) -> Iterator[tuple[AttributeFile, pa.Table]]:
    """Yield the row groups of an annotator's files, with the ids and these columns. Raises CorruptError if a file has
    other columns, or another number of rows, than the manifest and the other files say.
    """
    names = ["id", *(one.name for one in columns)]
    for file in files:
        rows = 0
        with open_shard(file.url) as shard:
            schema: Any = shard.schema_arrow
        for one in columns:
            if schema.get_field_index(one.name) < 0 or schema.field(one.name).type != one.type:
                raise CorruptError(f"{file.url} has no column {one.name!r} of type {one.type}, but other tables have")
        for table in iterate_shard(file.url, names):
            rows += table.num_rows
            yield file, table.combine_chunks()
        if rows != file.rows:
            raise CorruptError(
                f"{file.url} has {rows:,} rows, but the manifest states {file.rows:,}; validate the step"
            )
