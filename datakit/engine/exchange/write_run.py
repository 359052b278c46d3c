"""Writes a run: rows that are in memory, ordered by bucket, or several runs of one task, copied into one.

Runs with more than MOST_BUCKETS buckets would have tiny record batches and large indexes: with 2**17 buckets, a run of
128 MB would have one batch per text and an index of 1 MB. Such runs are therefore written with coarser buckets, and the
column FINE says to which bucket of the exchange, within its coarse bucket, a row belongs (1 byte per row for up to
2**18 buckets). A merge divides the rows further (`merge.py`).

Cost: a stable sort of the bucket numbers and one copy of the rows; `copy_runs` copies bytes without decoding them, at
the speed of the disk. Memory: the rows gathered at a time; `copy_runs` only maps files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from datakit.engine.exchange.run_file import END_OF_STREAM, RunIndex, map_file, windows
from datakit.engine.exchange.scattered_rows import ScatteredRows
from datakit.errors import ColumnError

FINE = "fine_bucket"  # the column of a coarse run that holds a row's bucket, relative to the first in its coarse bucket


def with_fine_buckets(tables: Sequence[pa.Table], buckets: Sequence[np.ndarray], each: int) -> list[pa.Table]:
    """Return the tables with the column FINE. buckets: for each table, the buckets of its rows. each: the number of
    buckets of the exchange in a coarse bucket.
    """
    if FINE in tables[0].column_names:
        raise ColumnError(f"column {FINE!r} has a name that the exchange uses itself; rename it")
    kind = np.min_scalar_type(each - 1)
    return [
        table.append_column(FINE, pa.array((bucket % each).astype(kind)))
        for table, bucket in zip(tables, buckets, strict=True)
    ]


def write_run(local: Path, rows: ScatteredRows, bucket: np.ndarray, buckets: int, most: int) -> RunIndex:
    """Write the data file of a run to `local`, gathering at most `most` rows at a time; return the run's index."""
    order, counts = np.argsort(bucket, kind="stable"), np.bincount(bucket, minlength=buckets)
    ends, sizes = np.concatenate([[0], np.cumsum(counts)]), np.zeros(buckets, np.int64)
    schema = rows.schema.serialize().to_pybytes()
    with pa.OSFile(str(local), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
        position = len(schema)
        for first, stop in windows(counts, most):
            for begin in range(ends[first], ends[stop], most):
                table = rows.take(order[begin : min(begin + most, ends[stop])])
                for number in first + np.flatnonzero(counts[first:stop]):
                    writer.write_table(table.slice(max(0, ends[number] - begin), min(counts[number], table.num_rows)))
                    sizes[number], position = sizes[number] + sink.tell() - position, sink.tell()
    offsets = len(schema) + np.concatenate([[0], np.cumsum(sizes)])
    return RunIndex(buckets, rows.num_rows, (schema,), offsets)


def copy_runs(local: Path, parts: Sequence[tuple[Path, RunIndex]]) -> RunIndex:
    """Copy runs with one segment each into one run at `local`; return its index. In each bucket, the rows keep their
    order. A segment starts wherever the schema changes from one run to the next.
    """
    schemas, sizes = list[bytes](), list[np.ndarray]()
    for _, index in parts:
        if not schemas or schemas[-1] != index.schemas[0]:
            schemas.append(index.schemas[0])
            sizes.append(np.zeros(index.buckets, np.int64))
        sizes[-1] += np.diff(index.offsets)
    files = [memoryview(map_file(str(path), 0, int(index.offsets[-1]))) for path, index in parts]
    spans = list(zip(files, (index.offsets.tolist() for _, index in parts), strict=True))
    with open(local, "wb", buffering=1 << 20) as sink:
        sink.write(schemas[0])
        for bucket in range(parts[0][1].buckets):
            sink.writelines(data[offsets[bucket] : offsets[bucket + 1]] for data, offsets in spans)
        sink.write(END_OF_STREAM)
    offsets = len(schemas[0]) + np.concatenate([[0], np.cumsum(np.stack(sizes, axis=1).reshape(-1))])
    rows = sum(index.rows for _, index in parts)
    return RunIndex(parts[0][1].buckets, rows, tuple(schemas), offsets)
