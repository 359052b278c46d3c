"""Compares the columns of consolidated documents, except `text` and `edited_id`, with those of normalized documents.

Documents are matched by id, and consolidate keeps their order. So if the documents that consolidate left out are
ignored, the rows of a normalized file must equal those of the consolidated file, in the same order.

Cost: decoding all columns except the text, twice. Memory: a row group of each file per thread, without the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from datakit.storage.manifest import Partition
from datakit.storage.parquet import open_shard, read_group
from datakit.validate.finding import Result
from datakit.validate.id_lists import Ids, contained, ids_of, read_ids
from datakit.validate.subject import Input, Subject, in_parallel

LEFT_OUT = ("text", "edited_id")


def check(step: Subject, result: Result) -> None:
    """Compare the columns of each partition with those of the input."""
    if missing := step.missing("normalize"):
        return result.skip(missing)
    for above, manifest in step.inputs_of("normalize"):
        pairs = [
            pair
            for source in dict.fromkeys(part.source for part in manifest.partitions)
            for pair in zip(step.manifest.partitions_of(source), manifest.partitions_of(source), strict=False)
        ]
        for rows in in_parallel(partial(_compare, step, result, above), pairs):
            result.count("document", rows)
    return None


def _compare(step: Subject, result: Result, above: Input, pair: tuple[Partition, Partition]) -> int:
    place, other = step.place(pair[0]), above.url(pair[1])
    if not step.sound(place, other):
        result.skip("damaged files are not compared")
        return 0
    with result.reading(place), result.reading(other):
        ids = read_ids(place)
        difference = first_difference(_kept(other, ids), _kept(place, ids))
        if difference:
            result.find(place, f"has another value than {other} {difference}")
        return len(ids)
    return 0


def _kept(url: str, ids: Ids) -> Iterator[pa.Table]:
    """Yield the row groups of a file with only the documents in `ids`, and without the text."""
    with open_shard(url) as shard:
        names = [name for name in shard.schema_arrow.names if name not in LEFT_OUT]
        for group in range(shard.metadata.num_row_groups):
            table = read_group(shard, group, url, names)
            yield table.filter(pa.array(contained(ids_of(table["id"]), ids)))


def first_difference(expected: Iterator[pa.Table], found: Iterator[pa.Table]) -> str:
    """Return the column and the document of the first difference between two streams of rows, or "". If one stream
    is longer, the rest of it is ignored: then the ids differ, which another check reports.
    """
    one, other = next(expected, None), next(found, None)
    while one is not None and other is not None:
        size = min(one.num_rows, other.num_rows)
        for name in one.column_names if size else ():
            ours = other[name].slice(0, size) if name in other.column_names else None
            if ours is None or not _equal(one[name].slice(0, size), ours):
                return f"in column {name!r}, in or after the document {one['id'][0].as_py()}"
        one, other = one.slice(size), other.slice(size)
        one = one if one.num_rows else next(expected, None)
        other = other if other.num_rows else next(found, None)
    return ""


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Return True if two columns are equal; unlike in Arrow, NaN equals NaN."""
    return one.equals(other) or repr(one.to_pylist()) == repr(other.to_pylist())
