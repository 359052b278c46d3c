"""Defines the types of the data that normalize passes between its plan and its tasks.

For transport they become plain dictionaries: task arguments, `Phase.shared` and `TaskResult.details`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from datakit.normalize.readers.slices import FileRange


class RouteShared(msgspec.Struct, frozen=True):
    """Data shared by all routing tasks.

    config: `Config` as plain data with every default. buckets: their number, a power of two.
    """

    base: str
    config: dict[str, Any]
    buckets: int


class RouteArguments(msgspec.Struct, frozen=True):
    """One routing task. listed: files it reads in place, path -> (size, modification time in ns, xxh3-128)."""

    key: str
    ranges: list[FileRange] = msgspec.field(name="pieces")
    listed: dict[str, tuple[int, int, str]]


class RouteDetails(msgspec.Struct, frozen=True):
    """The result of one slice. schemas: (file, schema as Arrow IPC in hex, since the ledger is JSON)."""

    runs: list[str]
    schemas: list[tuple[str, str]]
    text_bytes: int


class OutputColumn(msgspec.Struct, frozen=True):
    """A column of the output, and the upstream column it comes from."""

    name: str
    upstream: str | None = None


class SortShared(msgspec.Struct, frozen=True):
    """Data shared by all sorting tasks: 2**bits partitions are read from 2**bucket_bits buckets of `runs`.

    schema: the output's schema, as Arrow IPC.
    """

    runs: list[str]
    bits: int
    bucket_bits: int
    source: str
    schema: bytes
    columns: list[OutputColumn]


class SortDetails(msgspec.Struct, frozen=True):
    """The result of one partition; the ids are None if it is empty."""

    text_bytes: int
    first_id: str | None
    last_id: str | None


def to_plain(value: msgspec.Struct) -> dict[str, Any]:
    """Convert an instance of one of these types to plain data. The inverse is `msgspec.convert`."""
    return msgspec.to_builtins(value, builtin_types=(bytes,))
