"""Sorts the removals of a dedup step into files by the ids of their representatives, so that memory does not grow with
the dataset. Bucket i of 2**k holds the removals whose representatives' ids have i as their top k bits, as the ids in
partition i of 2**k do.

The shingles of a removed document can be stored with its removal; they are in a second file of the bucket.

Disk: 57 bytes per removal and 8 bytes per shingle, in temporary files. Memory: the removals of one partition or one
bucket; shingles are mapped into memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.storage.ids import top_bits
from datakit.storage.parquet import iterate_shard
from datakit.validate.id_lists import Ids, distinct, ids_of

BUCKET_REMOVALS = 200_000
REMOVAL = np.dtype([
    ("high", "<u8"), ("low", "<u8"), ("source", "<i4"),
    ("kept_high", "<u8"), ("kept_low", "<u8"), ("kept_source", "<i4"),
    ("fuzzy", "?"), ("jaccard", "<f8"), ("shingles", "<i8"),
])  # fmt: skip


class Spill:
    """Removals in files below `folder`, in `count` buckets (a power of two)."""

    def __init__(self, folder: Path, removals: int, sources: list[str]) -> None:
        """sources: all sources of the step, in order; removals refer to them by their index."""
        self.count: int = 1
        while removals > self.count * BUCKET_REMOVALS:
            self.count *= 2
        self._folder, self._sources = folder, pa.array(sources, pa.string())

    def add(self, removals: np.ndarray, sets: Sequence[np.ndarray] = ()) -> None:
        """Append removals to their buckets. sets: the shingles of each removed document, uint64; () to store none."""
        removals["shingles"] = [len(one) for one in sets] if sets else 0
        buckets = top_bits(removals["kept_high"].astype(np.uint64), self.count)
        for bucket in distinct(buckets).tolist():
            with self._path(bucket).open("ab") as file:
                file.write(removals[buckets == bucket].tobytes())
            if sets:
                with self._path(bucket, ".shingles").open("ab") as file:
                    file.writelines(sets[at].tobytes() for at in np.flatnonzero(buckets == bucket).tolist())

    def bucket(self, number: int) -> np.ndarray:
        """Return the removals of one bucket."""
        path = self._path(number)
        return np.fromfile(path, REMOVAL) if path.exists() else np.empty(0, REMOVAL)

    def sets(self, number: int) -> list[np.ndarray]:
        """Return the shingles of the removed documents in a bucket, in the order of `bucket(number)`."""
        ends, path = np.cumsum(self.bucket(number)["shingles"]), self._path(number, ".shingles")
        if not len(ends) or not ends[-1]:
            return [np.empty(0, np.uint64)] * len(ends)
        return np.split(np.asarray(np.memmap(path, np.uint64, "r")), ends[:-1])

    def removals_of(self, url: str, source: int) -> np.ndarray:
        """Return the removals that dedup lists in the file `url`. source: the index of the source they belong to."""
        found = [np.empty(0, REMOVAL)]
        names = ["id", "reason", "representative_id", "representative_source", "jaccard"]
        for table in iterate_shard(url, names):
            rows = np.empty(table.num_rows, REMOVAL)
            for prefix, column in (("", "id"), ("kept_", "representative_id")):
                ids = ids_of(table[column].cast(pa.string()))
                rows[f"{prefix}high"], rows[f"{prefix}low"] = ids.high, ids.low
            kept = table["representative_source"].cast(pa.string()).combine_chunks()
            rows["kept_source"] = (
                pc.call_function("index_in", [kept], pc.SetLookupOptions(value_set=self._sources))
                .fill_null(-1)
                .to_numpy()
            )
            rows["fuzzy"] = np.array(table["reason"].to_pylist()) == "fuzzy"
            rows["jaccard"], rows["source"] = table["jaccard"].to_numpy(), source
            found.append(rows)
        return np.concatenate(found)

    def _path(self, bucket: int, suffix: str = "") -> Path:
        return self._folder / f"bucket-{bucket:06d}{suffix}"


def removed(rows: np.ndarray) -> Ids:
    """Return the ids of the removed documents."""
    return Ids(rows["high"].astype(np.uint64), rows["low"].astype(np.uint64))


def kept(rows: np.ndarray) -> Ids:
    """Return the ids of the representatives."""
    return Ids(rows["kept_high"].astype(np.uint64), rows["kept_low"].astype(np.uint64))
