"""Defines the lists of document buckets: sparse files that name the documents of each bucket of a normalized partition.

The file `buckets/<source>/<bucket>/part-00017-of-00106.parquet` of a select step belongs to the normalized partition of
the same name. Only sources to which a bucket of the recipe applies have these files, and then one for every such bucket
and every partition, even if it is empty. A file has one row for each document in the bucket that stays, in the order of
the partition, so `id` and `row` ascend:

    id     the document's id, with which readers verify the row
    row    the document's row in the partition, counted from 0

The documents of such a source that stay and that no file names are in the bucket REST.

Cost: a few bytes per document in a bucket. Memory: one row group of each list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.manifest import Manifest
from datakit.storage.selection.listed_rows import ADVICE, ListedRows

FOLDER = "buckets"  # also the parameter of a select step that holds the settings of its buckets
REST = "rest"
SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("row", pa.uint64(), nullable=False)])


@dataclass(frozen=True)
class Members:
    """The documents of a partition that are in a bucket: those in the lists at these URLs or, if `rest` is True, those
    in none of them. rows: the number of the bucket's documents.
    """

    rows: int
    lists: list[str] = field(default_factory=list)
    rest: bool = False


def bucket_path(source: str, bucket: str, name: str) -> str:
    """Return the path, in a select step's directory, of a bucket's list for the partition with this file name."""
    return f"{FOLDER}/{source}/{bucket}/{name}"


def buckets_of(manifest: Manifest, source: str) -> list[str]:
    """Return the buckets into which a select step divides a source, in the order of the recipe, then REST; none if it
    does not divide the source. manifest: that of the select step.
    """
    return buckets_for(source, manifest.parameters.get(FOLDER, ()))


def buckets_for(source: str, buckets: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the buckets of a source. buckets: the settings of all buckets of the recipe."""
    mine = [str(one["name"]) for one in buckets if not one["sources"] or source in list(one["sources"])]  # type: ignore[call-overload]
    return [*mine, REST] if mine else []


def members_of(directory: str, manifest: Manifest, source: str, name: str, staying: int) -> dict[str, Members]:
    """Return the documents of each bucket of a partition, in the order of `buckets_of`.

    directory, manifest: those of the select step. name: the partition's file name. staying: the number of its documents
    that stay. Raises CorruptError if the step lacks a list, or if the lists name more documents than stay.
    """
    found = dict[str, Members]()
    for bucket in buckets_of(manifest, source)[:-1]:
        path = bucket_path(source, bucket, name)
        listed = manifest.files_by_path.get(path)
        if listed is None:
            raise CorruptError(f"{directory}: its manifest does not list {path}; {ADVICE}")
        found[bucket] = Members(listed.rows, [urls.join(directory, path)] if listed.rows else [])
    if not found:
        return found
    left = staying - sum(one.rows for one in found.values())
    if left < 0:
        raise CorruptError(f"{directory}: the buckets of {source}/{name} hold more documents than stay; {ADVICE}")
    return {**found, REST: Members(left, [url for one in found.values() for url in one.lists], rest=True)}


class MemberRows:
    """The rows of one partition that are in a bucket; all rows if `members` is None. dataset: the URL of the partition,
    for messages.
    """

    def __init__(self, members: Members | None, dataset: str) -> None:
        self._rest = members is None or members.rest
        self._lists = [ListedRows(url, dataset, SCHEMA) for url in (members.lists if members is not None else ())]

    def inside(self, ids: pa.ChunkedArray) -> np.ndarray | None:
        """Take the partition's next documents, which have these ids. Return which of them are in the bucket, bool [N],
        or None if all are. Raises CorruptError if a list states a different id for one of them.
        """
        if self._rest and not self._lists:
            return None
        found = np.full(len(ids), self._rest)
        for listed in self._lists:
            found[listed.take(ids)[0]] = not self._rest
        return found

    def skip_to(self, row: int) -> None:
        """Continue at this row of the partition."""
        for listed in self._lists:
            listed.skip_to(row)

    def expect_end(self) -> None:
        """Raise CorruptError if a list contains rows beyond the end of the partition."""
        for listed in self._lists:
            listed.expect_end()


class BucketNames:
    """The name of the bucket of each document of one partition. buckets: those of the partition (see `members_of`)."""

    def __init__(self, buckets: Mapping[str, Members], dataset: str) -> None:
        self._names = pa.array([*list(buckets)[:-1], REST], pa.string())
        named = list(buckets.values())[:-1]
        self._lists = [ListedRows(one.lists[0] if one.lists else None, dataset, SCHEMA) for one in named]

    def of(self, ids: pa.ChunkedArray) -> pa.Array:
        """Take the partition's next documents, which have these ids. Return their buckets."""
        codes = np.full(len(ids), len(self._lists))
        for number, listed in enumerate(self._lists):
            codes[listed.take(ids)[0]] = number
        return self._names.take(pa.array(codes))

    def expect_end(self) -> None:
        """Raise CorruptError if a list contains rows beyond the end of the partition."""
        for listed in self._lists:
            listed.expect_end()
