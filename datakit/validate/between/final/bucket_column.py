"""Compares the column `bucket` of a consolidated file with the lists of the select step.

Cost: decoding the column, and the ids in the lists. Memory: for each thread, 24 bytes per document of a partition.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.storage.manifest import Manifest, Partition
from datakit.storage.parquet import read_shard
from datakit.storage.selection.buckets import FOLDER, REST, bucket_path, buckets_of
from datakit.storage.urls import name as name_of
from datakit.validate.finding import Result
from datakit.validate.id_lists import Ids, ids_of, positions

BUCKET = "bucket"


def lists_of(select: Manifest | None, part: Partition) -> dict[str, str] | None:
    """Return, for each bucket of a partition except the rest, the path of its list in the select step; None if no
    source of the dataset is divided.
    """
    if select is None or FOLDER not in select.details:
        return None
    name = name_of(part.path)
    return {one: bucket_path(part.source, one, name) for one in buckets_of(select, part.source)[:-1]}


def compare(place: str, ids: Ids, lists: Mapping[str, str], result: Result) -> None:
    """Report the first document that another bucket lists than the column names. ids: those of the file, which are
    as expected. lists: the URLs of the lists of all buckets; none if the source is not divided.
    """
    codes, names = np.zeros(len(ids), np.int32), [REST, *lists]
    for number, url in enumerate(lists.values()):
        with result.reading(url):
            table = read_shard(url, ["id"])
            found = positions(ids_of(table["id"]), ids) if table.num_rows and len(ids) else np.empty(0, np.int64)
            if len(found) < table.num_rows or (found < 0).any():
                result.find(url, f"names a document that {place} does not have")
            codes[found[found >= 0]] = number + 1
    expected = pa.array(names, pa.string()).take(pa.array(codes)) if lists else pa.nulls(len(ids), pa.string())
    column = read_shard(place, [BUCKET])[BUCKET].combine_chunks()
    differs = pc.call_function("not_equal", [_known(column), _known(expected)])
    wrong = np.flatnonzero(differs.to_numpy(zero_copy_only=False))
    if len(wrong):
        row = int(wrong[0])
        said, listed = column[row].as_py(), expected[row].as_py()
        result.find(place, f"says that the document {ids.text(row)} is in bucket {said!r}; the select step: {listed!r}")


def _known(names: pa.Array) -> pa.Array:
    """Return the names with "" in the place of null, which no bucket is called."""
    return pc.call_function("coalesce", [names, pa.scalar("")])
