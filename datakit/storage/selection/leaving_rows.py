"""Defines and reads selections: sparse files that list the rows of a normalized partition that leave the dataset.

The file `data/<source>/part-00017-of-00106.parquet` of a select step belongs to the normalized partition of the same
name. It has one row for each document that leaves, in the order of the partition, so `id` and `row` ascend:

    id         the document's id, with which readers verify the row
    row        the document's row in the partition, counted from 0
    reasons    all reasons for which the document leaves, in alphabetical order, at least one

A reader ignores unknown columns, so later versions may add some. It filters by row and does not parse ids, but compares
the listed id of each row that leaves with the id in the partition, so a selection is never applied to another version
of the partition.

Cost: a few bytes per document that leaves. Memory: one row group of the list (65,536 rows).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.manifest import Manifest, Partition
from datakit.storage.selection.buckets import Members, members_of
from datakit.storage.selection.edits import edits_url
from datakit.storage.selection.listed_rows import ListedRows

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("row", pa.uint64(), nullable=False),
        pa.field("reasons", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
    ]
)
RULE = "rule:"  # before the name of a rule that is the reason
FINAL = "final:"  # before the name of a rule of [select] that is the reason
DICTIONARY = ("reasons.list.element",)


@dataclass(frozen=True)
class Selected:
    """The selection of one partition, as far as a plan needs it. leaving: the URL of the list of the rows that leave;
    None if all stay. rows: the number of documents that stay. edits: the URL of the list of the edits of their texts;
    None if there are none. buckets: the documents of each bucket of the partition, by name (see `members_of`); empty if
    its source is not divided.
    """

    leaving: str | None
    rows: int
    edits: str | None = None
    buckets: dict[str, Members] = field(default_factory=dict)


def selected(directory: str, manifest: Manifest, source: str, partitions: Sequence[Partition]) -> list[Selected]:
    """Return the selection of each normalized partition of a source. directory, manifest: those of the select step.

    Raises CorruptError if the step's partitions do not match.
    """
    lists = aligned(directory, manifest, source, partitions)
    return [
        Selected(
            urls.join(directory, listed.path) if listed.rows else None,
            partition.rows - listed.rows,
            edits_url(directory, manifest, source, urls.name(partition.path)),
            members_of(directory, manifest, source, urls.name(partition.path), partition.rows - listed.rows),
        )
        for listed, partition in zip(lists, partitions, strict=True)
    ]


class ShardRows(NamedTuple):
    """The documents of one shard of a token cache: those of the source's partition `number` that stay, or those of them
    that are in a bucket. rows: their number. members: None if the source is not divided.
    """

    number: int
    bucket: str | None
    rows: int
    members: Members | None


def shards_of(selections: Sequence[Selected]) -> Iterator[ShardRows]:
    """Yield the shards of a source in the order of a token cache, including those without documents. selections:
    those of the source's partitions.
    """
    buckets = list(selections[0].buckets) if selections else []
    for bucket in buckets or [None]:
        for number, selection in enumerate(selections):
            members = selection.buckets[bucket] if bucket is not None else None
            yield ShardRows(number, bucket, members.rows if members is not None else selection.rows, members)


def aligned(directory: str, manifest: Manifest, source: str, partitions: Sequence[Partition]) -> list[Partition]:
    """Return a step's partitions of a source. The step must have one partition for each of `partitions`, with the same
    name; otherwise, CorruptError is raised.
    """
    found = manifest.partitions_of(source)
    if [urls.name(entry.path) for entry in found] != [urls.name(entry.path) for entry in partitions]:
        raise CorruptError(
            f"{directory}: its files for source {source!r} ({len(found)} partitions) are not aligned with the dataset "
            f"({len(partitions)} partitions); remove this directory and run again"
        )
    return found


class LeavingRows(ListedRows):
    """The rows of one partition that leave.

    url: the list of these rows; None if all rows stay. dataset: the URL of the partition, for messages.
    """

    def __init__(self, url: str | None, dataset: str) -> None:
        super().__init__(url, dataset, pa.schema([SCHEMA.field("id"), SCHEMA.field("row")]))

    def among(self, ids: pa.ChunkedArray) -> np.ndarray:
        """Take the partition's next documents, which have these ids. Return the positions of those that leave, int64,
        ascending. Raises CorruptError if the list states a different id for one of them.
        """
        return self.take(ids)[0]

    def staying(self, ids: pa.ChunkedArray) -> np.ndarray | None:
        """Like `among`, but return which documents stay, bool [N], or None if all stay."""
        leaving = self.among(ids)
        if not len(leaving):
            return None
        staying = np.ones(len(ids), bool)
        staying[leaving] = False
        return staying


def only(table: pa.Table, staying: np.ndarray) -> pa.Table:
    """Return the rows of a table for which `staying`, bool [N], is true."""
    bits = pa.py_buffer(np.packbits(staying, bitorder="little"))
    return table.filter(pa.BooleanArray.from_buffers(pa.bool_(), len(staying), [None, bits]))


def both(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    """Return where two masks, bool [N], are both true; None stands for a mask that is true everywhere."""
    if one is None or other is None:
        return one if other is None else other
    return one & other
