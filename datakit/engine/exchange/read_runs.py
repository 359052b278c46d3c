"""Reads ranges of buckets from runs. From an object store, several ranges are fetched at a time, shortly before the
caller needs them.

Cost: two requests per file of a run, one for a part of its index and one for a range of bytes. Memory: local files are
mapped in place, and remote ranges are copied to scratch files and mapped there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from datakit.engine.exchange.run_file import RunIndex, decode_buckets, decode_segments, map_range, read_index
from datakit.engine.exchange.run_names import Range, ranges_of
from datakit.engine.exchange.write_run import FINE
from datakit.errors import CorruptError
from datakit.storage import urls

PIECE_BYTES = 16 << 20
Fetched = tuple[RunIndex, pa.Buffer | None, str]  # index, bytes of the buckets (None if they are empty), URL of the run


def read_buckets(
    step_directory: str, runs: Sequence[str], first_bucket: int, last_bucket_exclusive: int, scratch: Path
) -> Iterator[pa.Table]:
    """Yield the rows of a range of buckets: one table, with the run's schema, for each run that contains such rows.
    Within a table, rows are ordered by bucket (in a coarse run, by coarse bucket); within a bucket, they keep the order
    in which they were written. A run with several segments yields one table per segment, and a merged run one table per
    file. Raises CorruptError.
    """
    ranges = [one for run in runs for one in ranges_of(run, first_bucket, last_bucket_exclusive)]
    for (index, data, url), place in zip(_fetched(step_directory, ranges, scratch), ranges, strict=True):
        if data is not None:
            for table in decode_segments(index, data, url):
                yield table.drop_columns([FINE]) if place.each > 1 else table


def in_pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows in tables of about PIECE_BYTES, which consist of whole record batches. A bucket of a merged
    run is one table, which may be larger than the memory, and most operations on a table copy its columns.
    """
    for table in tables:
        waiting, size = list[pa.RecordBatch](), 0
        for batch in table.to_batches():
            waiting.append(batch)
            size += batch.nbytes
            if size >= PIECE_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting, size = [], 0
        if waiting:
            yield pa.Table.from_batches(waiting)


def read_with_buckets(
    step_directory: str, ranges: Sequence[Range], buckets: int, scratch: Path
) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """Yield the rows in these ranges, as `read_buckets` does, and the bucket of each: int64 [N]. A run without such
    rows yields an empty table. buckets: the number of buckets of the exchange. Raises CorruptError.
    """
    for (index, data, url), place in zip(_fetched(step_directory, ranges, scratch), ranges, strict=True):
        if index.buckets * place.each != buckets:
            raise CorruptError(
                f"{url} has {index.buckets * place.each} buckets, but {buckets} were expected; remove the step's "
                "folder exchange/ and run again"
            )
        if data is None:
            schema = pa.ipc.read_schema(pa.BufferReader(index.schemas[0]))
            yield _divided(schema.empty_table(), np.zeros(0, np.int64), place.each)
            continue
        for table, bucket in decode_buckets(index, data, url):
            yield _divided(table, bucket, place.each)


def _fetched(step_directory: str, ranges: Sequence[Range], scratch: Path) -> Iterator[Fetched]:
    places = {urls.join(step_directory, one.path): one for one in ranges}
    assert len(places) == len(ranges), "no file is read twice"

    def fetch(url: str) -> Fetched:
        index = read_index(url, places[url].first, places[url].stop)
        start, stop = int(index.offsets[0]), int(index.offsets[-1])
        return index, map_range(url, start, stop, scratch) if stop > start else None, url

    return urls.fetch_ahead(fetch, list(places))


def _divided(table: pa.Table, bucket: np.ndarray, each: int) -> tuple[pa.Table, np.ndarray]:
    """Return the rows of a run without the column FINE, and the bucket of each row in the exchange."""
    if each == 1:
        return table, bucket
    return table.drop_columns([FINE]), bucket * each + table[FINE].to_numpy().astype(np.int64)
