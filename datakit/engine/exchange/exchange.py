"""Shuffles rows through files: decides where a map task's runs end, writes their rows ordered by bucket, and reads
ranges of buckets.

Map tasks write runs, whose rows are ordered by bucket. Each reducer reads the byte range of its buckets from every run.
Only file names pass through the driver. A run ends when its rows reach `budget_bytes / 2` bytes (at most 1 GiB), when
the schema changes, or before a row that could make a column exceed 2 GiB. A reducer gets the rows of a bucket in the
order of the runs and, within a run, in the order in which they were written. Run boundaries depend only on the rows,
not on their division into tables, so a rerun of a task with smaller batches writes the same bytes. A run is committed
as soon as the input from which its rows come is known to be sound (see `InputState`). Until then, it is a temporary
file: beside its final location if the step is on a disk, or in the temporary directory if the step is in an object
store. If a writer's runs in the temporary directory take more than STAGED_BYTES, all parts of the input that have been
begun are verified immediately.

Memory: besides the table being written, a writer holds about `budget_bytes` (measured: 1.1 times that, regardless of
skew). One half of this memory holds the rows waiting to be written, plus 10 bytes per row for its bucket number and
position. The other half holds a contiguous copy of these rows, from which 4 MiB at a time are gathered in bucket order
and written. A reducer holds only memory-mapped files.
Cost of each run: one stable sort of the bucket numbers (a radix sort in numpy if they fit in 16 bits), two copies of
the rows, and two files. With a warm page cache, the throughput is 500 MB (for narrow rows) to 900 MB per CPU-second.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import types

from datakit.engine.exchange.input_state import SOUND, InputState
from datakit.engine.exchange.merge import both, merged, run_sizes
from datakit.engine.exchange.run_file import INDEX_SUFFIX, RunIndex, decode_segments, map_range, read_index, windows
from datakit.engine.task import OutputFile, TaskContext
from datakit.errors import ColumnError
from datakit.storage import atomic, urls
from datakit.storage.row_size import row_sizes

__all__ = ["ExchangeWriter", "both", "merged", "read_buckets", "run_sizes"]

ROW_OVERHEAD = 10  # bytes per waiting row, for its bucket number and its position
MOST_RUN_BYTES = (1 << 31) - 1  # the most bytes that 32-bit offsets can address
STAGED_BYTES = 1 << 30  # limit on the total size of a writer's uncommitted runs in the temporary directory
HEAVY_SHARE = 1 / 8  # a bucket with a larger share of a run's bytes is listed in `ExchangeWriter.heavy`
WINDOW_BYTES = 4 << 20  # bytes of rows gathered at a time; a larger bucket is written as several record batches

Fetched = tuple[RunIndex, pa.Buffer | None, str]  # index, bytes of the buckets (None if they are empty), URL of the run


@dataclass(frozen=True)
class _StagedRun:
    """An uncommitted run. needs: the number of input parts that must be sound before the run may be committed."""

    path: str
    local: Path
    index: RunIndex
    needs: int
    staging: ExitStack


class ExchangeWriter:
    """Writes runs to `exchange/<phase>/<key>-<number>.arrow` below the step's directory. `outputs` lists all files
    written, for TaskResult.outputs; `runs` lists the runs' relative paths, for TaskResult.details["runs"]; `heavy` maps
    each bucket that holds more than HEAVY_SHARE of a run to its total size, in bytes, in all such runs.
    """

    def __init__(
        self,
        context: TaskContext,
        phase: str,
        key: str,
        buckets: int,
        budget_bytes: int = 256 << 20,
        *,
        before_commit: Callable[[], None] = lambda: None,
        input_state: InputState = SOUND,
    ) -> None:
        """`buckets` is the number of buckets, a power of two up to 2**31; `budget_bytes` bounds the writer's memory.
        `before_commit` is called before each run is committed, and must raise an exception if the rows written so far
        must not be committed. A committed run is permanent, and reruns of the task are compared with it. `input_state`
        counts the parts of the input that are known to be sound; when the `with` block ends, all parts must be sound.
        """
        if buckets < 1 or buckets & (buckets - 1) or buckets > 1 << 31:
            raise ValueError(f"the number of buckets is {buckets}; it must be a power of two up to 2**31")
        self._directory, self._prefix, self._buckets = context.step_directory, f"exchange/{phase}/{key}", buckets
        self._run_bytes = min(max(1, budget_bytes // 2), 1 << 30)  # columns with 32-bit offsets must stay below 2 GiB
        self._before_commit, self._input = before_commit, input_state
        self._bucket_type = np.uint16 if buckets <= 1 << 16 else np.uint32
        self._tables: list[pa.Table] = []
        self._pending: list[np.ndarray] = []
        self._bytes = 0
        self._staged: deque[_StagedRun] = deque()
        self._outputs: list[OutputFile] = []
        self.runs: list[str] = []
        self.heavy: Counter[int] = Counter()

    @property
    def outputs(self) -> tuple[OutputFile, ...]:
        """The files that this writer has committed so far; the tuple is complete after the `with` block."""
        return tuple(self._outputs)

    def __enter__(self) -> ExchangeWriter:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with ExitStack() as stack:
            stack.callback(self._discard)
            if error is None:
                self._flush()
                self._commit_sound()
                assert not self._staged, "the input has ended, so all of it must be sound"

    def _discard(self) -> None:
        self._tables, self._pending = [], []
        while self._staged:
            self._staged.popleft().staging.close()

    def write(self, table: pa.Table, bucket: np.ndarray) -> None:
        """Append rows; `bucket` holds each row's bucket number, in [0, buckets). A new schema starts a new run."""
        if len(bucket) != table.num_rows:
            raise ValueError(f"there are {table.num_rows} rows, but {len(bucket)} bucket numbers; give one per row")
        if not table.num_rows:
            return
        if bucket.min() < 0 or bucket.max() >= self._buckets:
            raise ValueError(
                f"bucket numbers range from {bucket.min()} to {bucket.max()}; only 0 to {self._buckets - 1} exist"
            )
        _refuse_dictionaries(table.schema)
        if self._tables and not self._tables[0].schema.equals(table.schema, check_metadata=True):
            self._flush()
        narrow = bucket.astype(self._bucket_type)
        ends = np.cumsum(row_sizes(table) + ROW_OVERHEAD)
        start, base = 0, 0
        while start < table.num_rows:
            stop = min(int(np.searchsorted(ends, base + self._run_bytes - self._bytes)) + 1, table.num_rows)
            too_large = self._bytes + int(ends[stop - 1]) - base > MOST_RUN_BYTES
            if too_large and self._tables and stop == start + 1:
                self._flush()
                continue
            stop -= too_large and stop > start + 1
            self._tables.append(table.slice(start, stop - start))
            self._pending.append(narrow[start:stop])
            self._bytes += int(ends[stop - 1]) - base
            start, base = stop, int(ends[stop - 1])
            if too_large or self._bytes >= self._run_bytes:
                self._flush()

    def _flush(self) -> None:
        if not self._tables:
            return
        table, bucket = _combine(self._tables), np.concatenate(self._pending)
        most = max(1, WINDOW_BYTES * table.num_rows // self._bytes)
        self._pending, self._bytes = [], 0
        path = f"{self._prefix}-{len(self.runs) + len(self._staged):05d}.arrow"
        with ExitStack() as stack:
            local = stack.enter_context(atomic.staging(urls.join(self._directory, path)))
            index = _write_run(local, table, bucket, self._buckets, most)
            self._staged.append(_StagedRun(path, local, index, self._input.begun, stack.pop_all()))
        sizes = np.diff(index.offsets)
        self.heavy.update(
            {int(bucket): int(sizes[bucket]) for bucket in np.flatnonzero(sizes > HEAVY_SHARE * sizes.sum())}
        )
        self._commit_sound()
        if not urls.is_local(self._directory) and self._staged_bytes() > STAGED_BYTES:
            self._input.verify()
            self._commit_sound()

    def _staged_bytes(self) -> int:
        return sum(run.local.stat().st_size for run in self._staged)

    def _commit_sound(self) -> None:
        """Commit, in order, the runs before the first one whose input is not yet known to be sound."""
        while self._staged and self._staged[0].needs <= self._input.sound:
            self._commit(self._staged.popleft())

    def _commit(self, run: _StagedRun) -> None:
        url = urls.join(self._directory, run.path)
        with run.staging:
            self._before_commit()
            data = atomic.commit_file(run.local, url)
        sidecar = atomic.commit_bytes(run.index.encode(), url + INDEX_SUFFIX)
        self._outputs.append(OutputFile(run.path, data.bytes, data.xxh3, run.index.rows))
        self._outputs.append(OutputFile(run.path + INDEX_SUFFIX, sidecar.bytes, sidecar.xxh3))
        self.runs.append(run.path)


def _refuse_dictionaries(schema: pa.Schema) -> None:
    for field in schema:
        if types.is_dictionary(field.type):
            raise ColumnError(f"column {field.name!r} is dictionary-encoded; cast it to {field.type.value_type} first")


def _combine(tables: list[pa.Table]) -> pa.Table:
    """Combine the tables into one table with one chunk per column. To save memory, the function empties `tables` and
    frees the columns of the old tables one by one.
    """
    schema = tables[0].schema
    columns = [[table.column(i) for table in tables] for i in range(len(schema))]
    tables.clear()
    arrays = []
    for i, field in enumerate(schema):
        chunks = [chunk for column in columns[i] for chunk in column.chunks]
        columns[i] = []
        arrays.append(pa.concat_arrays(chunks) if len(chunks) > 1 else chunks[0])
        del chunks
        assert arrays[-1].type == field.type
    return pa.Table.from_arrays(arrays, schema=schema)


def _write_run(local: Path, table: pa.Table, bucket: np.ndarray, buckets: int, most: int) -> RunIndex:
    """Write the data file of a run to `local`, gathering at most `most` rows at a time; return the run's index."""
    order, counts = np.argsort(bucket, kind="stable"), np.bincount(bucket, minlength=buckets)
    ends, sizes = np.concatenate([[0], np.cumsum(counts)]), np.zeros(buckets, np.int64)
    schema = table.schema.serialize().to_pybytes()
    with pa.OSFile(str(local), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        position = len(schema)
        for first, stop in windows(counts, most):
            for begin in range(ends[first], ends[stop], most):
                rows = table.take(pa.array(order[begin : min(begin + most, ends[stop])]))
                for number in first + np.flatnonzero(counts[first:stop]):
                    writer.write_table(rows.slice(max(0, ends[number] - begin), min(counts[number], rows.num_rows)))
                    sizes[number], position = sizes[number] + sink.tell() - position, sink.tell()
    offsets = len(schema) + np.concatenate([[0], np.cumsum(sizes)])
    return RunIndex(buckets, table.num_rows, (schema,), offsets)


def read_buckets(
    step_directory: str, runs: Sequence[str], first_bucket: int, last_bucket_exclusive: int, scratch: Path
) -> Iterator[pa.Table]:
    """Yield the rows of a range of buckets: one table, with the run's schema, for each run that contains such rows.
    Within a table, rows are ordered by bucket; within a bucket, they keep the order in which they were written. A
    merged run yields one table for each group of consecutive input runs that share a schema. From an object store,
    several ranges are fetched at a time, shortly before the caller needs them. Raises CorruptError.
    """
    places = [urls.join(step_directory, run) for run in runs]

    def fetch(url: str) -> Fetched:
        index = read_index(url, first_bucket, last_bucket_exclusive)
        start, stop = int(index.offsets[0]), int(index.offsets[-1])
        return index, map_range(url, start, stop, scratch) if stop > start else None, url

    for index, data, url in urls.fetch_ahead(fetch, places):
        if data is not None:
            yield from decode_segments(index, data, url)
