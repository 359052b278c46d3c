"""Defines the arguments, shared values and results that normalize passes between its plan and its routing and sorting
tasks. All of them are passed as plain dictionaries: as task arguments, in `Phase.shared`, and in `TaskResult.details`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from datakit.normalize.columns.output_columns import OutputColumn
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.slices import FileRange

Listed = dict[str, tuple[int, int, str]]  # files read in place: path -> (size, modification time in ns, xxh3-128)


class RouteShared(msgspec.Struct, frozen=True):
    """Data shared by all routing tasks. config: the `Config` as plain data, including all defaults. buckets: the
    number of buckets, a power of two. where_types: the schema of the columns that `where` sees, in Arrow's IPC format.
    """

    base: str
    config: dict[str, Any]
    buckets: int
    where_types: bytes = b""


class RouteArguments(msgspec.Struct, frozen=True, omit_defaults=True):
    """The arguments of one routing task.

    listed: the task's files that are read in place. copies, content_starts, attributes: the entries of `Inputs.copies`,
    `Inputs.content_starts` and `Inputs.attributes` for its files.
    first_file: the index of the task's first file in the sorted list of the source's files; its other files follow.
    most: the largest number of documents that the slice may yield, if `limit` ends in it. splits: the split of each of
    its files, if the source has splits.
    """

    key: str
    ranges: list[FileRange] = msgspec.field(name="pieces")
    listed: Listed
    first_file: int
    copies: dict[str, str] = {}
    most: int | None = None
    splits: dict[str, str] = {}
    content_starts: list[tuple[str, int, int]] = []
    attributes: dict[str, list[str]] = {}

    def inputs(self, base: str) -> Inputs:
        """Return the task's files, which are below the URL `base`."""
        starts = {(path, stored): content for path, stored, content in self.content_starts}
        return Inputs(base, self.listed, copies=self.copies, content_starts=starts, attributes=self.attributes)


class TypesDetails(msgspec.Struct, frozen=True):
    """The column types of one slice. The fields have the same meaning as in `RouteDetails`."""

    schemas: list[tuple[str, str]]
    large: list[tuple[tuple[str, ...], int]]
    absent: list[int] = []
    names: list[str] = []


class CountDetails(msgspec.Struct, frozen=True):
    """The number of documents of one slice."""

    documents: int


class RouteDetails(msgspec.Struct, frozen=True):
    """The result of routing one slice.

    schemas: (file, schema) pairs, each schema in Arrow's IPC format, as hex digits because the ledger is JSON.
    large: (column path, largest absolute value of its integers) pairs in which this value is above 2**53.
    documents: True if all records of the slice are documents that datakit wrote.
    value_bytes: the size of all documents with their upstream columns, in bytes.
    heavy: (bucket, size in bytes) pairs for the buckets that hold a large share of the slice.
    files: the counts named in `origins.COUNTED`, for each file of the slice.
    giants: (first half of the id, second half, size in bytes) of each document over `route.GIANT_BYTES`.
    absent: the numbers, in the list of `wanted_paths`, of the paths that no record of the slice has. names: names of
    columns and fields in the slice, for the message about such paths. values: the number of values in each column that
    holds values of one kind.
    """

    runs: list[str]
    schemas: list[tuple[str, str]]
    large: list[tuple[tuple[str, ...], int]]
    documents: bool
    value_bytes: int
    heavy: list[tuple[int, int]]
    files: list[list[int]]
    giants: list[tuple[int, int, int]] = []
    absent: list[int] = []
    names: list[str] = []
    values: dict[str, int] = {}


class SortShared(msgspec.Struct, frozen=True):
    """Data shared by all sorting tasks. The tasks turn the 2**bucket_bits buckets in `runs` into 2**bits partitions.
    schema: the output's schema, in Arrow's IPC format.
    """

    runs: list[str]
    bits: int
    bucket_bits: int
    source: str
    schema: bytes
    columns: list[OutputColumn]


class SortDetails(msgspec.Struct, frozen=True):
    """The result of sorting one partition. If the partition is empty, both ids are None."""

    text_bytes: int
    first_id: str | None
    last_id: str | None


def to_plain(value: msgspec.Struct) -> dict[str, Any]:
    """Convert an instance of one of these types to plain data; `msgspec.convert` does the reverse."""
    return msgspec.to_builtins(value, builtin_types=(bytes,))
