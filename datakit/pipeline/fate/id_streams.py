"""Reads the sorted ids of several steps side by side, in memory that does not grow with the dataset.

Each stream holds at most one row group (65,536 ids). `side_by_side` takes the last id that each stream holds, and cuts
all streams at the smallest of these ids. All unread ids are greater than this one, because each stream's ids ascend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.errors import CorruptError
from datakit.pipeline.fate.behind import Finished
from datakit.storage.ids import ids_from_arrow
from datakit.storage.parquet import iterate_shard

KEY = "S16"  # an id's 16 bytes, which sort like its hex digits


class Ids(NamedTuple):
    """Ascending ids, each with a mark (see `IdStream`)."""

    keys: np.ndarray  # S16 [N]
    marks: np.ndarray  # int8 [N]


class IdStream:
    """The ids of one source in a step, each with a mark. The mark is the index in `values` of the string that `column`
    contains in the row of the id, or -1 if `values` does not contain this string.

    If `step` is None, there are no ids. suffix: see `Finished.row`. bucket: only the ids of this document bucket.
    """

    def __init__(
        self,
        step: Finished | None,
        source: str,
        suffix: str = "",
        column: str = "",
        values: Sequence[str] = (),
        *,
        bucket: str | None = None,
    ) -> None:
        parts = step.manifest.partitions_of(source) if step is not None else []
        parts = [part for part in parts if bucket in (None, part.bucket)]
        self._paths = [step.url(part.path) + suffix for part in parts if part.rows and step is not None]
        self._column, self._values = column, pa.array(values, pa.string())
        self._chunks = self._read()
        self._held = Ids(np.empty(0, KEY), np.empty(0, np.int8))

    def _read(self) -> Iterator[Ids]:
        before: bytes | None = None
        for path in self._paths:
            for table in iterate_shard(path, ["id", *([self._column] if self._column else [])]):
                found = self._ids(table)
                if not len(found.keys):
                    continue
                if (before is not None and found.keys[0] <= before) or (found.keys[1:] <= found.keys[:-1]).any():
                    raise CorruptError(f"{path}: ids are not strictly ascending; run `datakit validate` on its step")
                before = found.keys[-1]
                yield found

    def _ids(self, table: pa.Table) -> Ids:
        keys = keys_of(table["id"])
        if not self._column:
            return Ids(keys, np.full(len(keys), -1, np.int8))
        column = table[self._column].cast(pa.string())
        marks = pc.call_function("index_in", [column], pc.SetLookupOptions(self._values))
        return Ids(keys, pc.fill_null(marks, -1).to_numpy().astype(np.int8))

    def last(self) -> bytes | None:
        """Return the last id that the stream holds, after reading more if it holds none; None at the end of the
        stream.
        """
        if not len(self._held.keys):
            self._held = next(self._chunks, self._held)
        return self._held.keys[-1] if len(self._held.keys) else None

    def take(self, bound: bytes) -> Ids:
        """Remove and return all ids up to and including `bound` that the stream holds."""
        count = int(np.searchsorted(self._held.keys, np.array(bound, KEY), side="right"))
        taken = Ids(self._held.keys[:count], self._held.marks[:count])
        self._held = Ids(self._held.keys[count:], self._held.marks[count:])
        return taken


class UnitedStream:
    """The ids of several streams, none of which is in two of them. A token cache whose source is divided into document
    buckets has one stream per bucket.
    """

    def __init__(self, streams: Sequence[IdStream]) -> None:
        self._streams = streams

    def last(self) -> bytes | None:
        """Like `IdStream.last`. All ids that were not read are greater than this one."""
        return min((end for stream in self._streams if (end := stream.last()) is not None), default=None)

    def take(self, bound: bytes) -> Ids:
        """Like `IdStream.take`."""
        parts = [stream.take(bound) for stream in self._streams]
        keys, marks = (np.concatenate(values) for values in zip(*parts, strict=True))
        order = np.argsort(keys, kind="stable")
        return Ids(keys[order], marks[order])


def stream_of(step: Finished | None, source: str, suffix: str = "") -> IdStream | UnitedStream:
    """Return the ids of a source in a step, which may be a token cache with document buckets."""
    parts = step.manifest.partitions_of(source) if step is not None else []
    buckets = list(dict.fromkeys(part.bucket for part in parts))
    if len(buckets) < 2:
        return IdStream(step, source, suffix)
    return UnitedStream([IdStream(step, source, suffix, bucket=bucket) for bucket in buckets])


def side_by_side(streams: Sequence[IdStream | UnitedStream]) -> Iterator[list[Ids]]:
    """For one range of ids after another, yield the ids that each stream has in this range."""
    while ends := [end for stream in streams if (end := stream.last()) is not None]:
        bound = min(ends)
        yield [stream.take(bound) for stream in streams]


def keys_of(column: pa.ChunkedArray) -> np.ndarray:
    """Convert a column of ids, each with 32 hex digits, to keys (S16 [N])."""
    pairs = np.empty((len(column), 2), ">u8")
    pairs[:, 0], pairs[:, 1] = ids_from_arrow(column)
    return pairs.view(KEY).reshape(-1)


def mark_in(keys: np.ndarray, ids: Ids) -> np.ndarray:
    """Return, for each of `keys`, its mark in `ids`, or -2 if `ids` does not contain it."""
    if not len(ids.keys):
        return np.full(len(keys), -2, np.int8)
    at = np.minimum(np.searchsorted(ids.keys, keys), len(ids.keys) - 1)
    return np.where(ids.keys[at] == keys, ids.marks[at], np.int8(-2))
