"""Shuffles rows through files: decides where a map task's runs end, and writes their rows ordered by bucket.

Map tasks write runs, whose rows are ordered by bucket. Each reducer reads the byte range of its buckets from every run
(`read_runs.py`). If there are more than MOST_BUCKETS buckets, the runs are coarse (`run_names.py`), and up to
COMBINED_RUNS consecutive runs of a task are copied into one before it is committed, because the number of requests
grows with the number of runs.

Only file names pass through the driver. A run ends when its rows reach `budget_bytes / 2` bytes (at most 1 GiB), when
the schema changes, or before a row that could make a column exceed 2 GiB. A reducer gets the rows of a bucket in the
order of the runs and, within a run, in the order in which they were written. Run boundaries depend only on the rows,
not on their division into tables, so a rerun of a task with smaller batches writes the same bytes. A run is committed
as soon as the input from which its rows come is known to be sound (see `InputState`). Until then, it is a temporary
file: beside its final location if the step is on a disk, or in the temporary directory if the step is in an object
store. If a writer's runs in the temporary directory take more than STAGED_BYTES, all parts of the input that have been
begun are verified immediately.

Memory: besides the table being written, a writer holds at most about `budget_bytes`, regardless of skew. One half of
this memory holds the rows waiting to be written, plus 10 bytes per row for its bucket number and position. From these
rows, 4 MiB at a time are gathered in bucket order and written (`scattered_rows.py`). The other half is needed only for
columns that do not hold strings, which are copied first. A reducer holds only memory-mapped files.
Cost of each run: one stable sort of the bucket numbers (a radix sort in numpy if they fit in 16 bits), one copy of the
strings and two of the other columns, and two files; another copy of the bytes if runs are combined. With a warm page
cache, the throughput is 500 MB (for narrow rows) to 900 MB per CPU-second.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import types

from datakit.engine.exchange.input_state import SOUND, InputState
from datakit.engine.exchange.merge import both, merged, run_sizes
from datakit.engine.exchange.read_runs import in_pieces, read_buckets
from datakit.engine.exchange.run_file import INDEX_SUFFIX, RunIndex
from datakit.engine.exchange.run_names import buckets_each, map_run
from datakit.engine.exchange.scattered_rows import ScatteredRows
from datakit.engine.exchange.write_run import copy_runs, with_fine_buckets, write_run
from datakit.engine.task import OutputFile, TaskContext
from datakit.errors import ColumnError
from datakit.storage import atomic, urls
from datakit.storage.row_size import row_sizes

__all__ = ["ExchangeWriter", "both", "in_pieces", "merged", "read_buckets", "run_sizes"]

ROW_OVERHEAD = 10  # bytes per waiting row, for its bucket number and its position
MOST_RUN_BYTES = (1 << 31) - 1  # the most bytes that 32-bit offsets can address
STAGED_BYTES = 1 << 30  # limit on the total size of a writer's uncommitted runs in the temporary directory
HEAVY_SHARE = 1 / 8  # a bucket with a larger share of a run's bytes is listed in `ExchangeWriter.heavy`
WINDOW_BYTES = 4 << 20  # bytes of rows gathered at a time; a larger bucket is written as several record batches
COMBINED_RUNS = 8  # number of consecutive runs of a map task that become one, if the runs are coarse


@dataclass(frozen=True)
class _StagedRun:
    """An uncommitted run. needs: the number of input parts that must be sound before the run may be committed."""

    local: Path
    index: RunIndex
    needs: int
    staging: ExitStack


class ExchangeWriter:
    """Writes runs to `exchange/<phase>/` below the step's directory (`run_names.py` explains the names). `outputs`
    lists all files written, for TaskResult.outputs; `runs` lists the runs' relative paths, for
    TaskResult.details["runs"]; `heavy` maps each bucket that holds more than HEAVY_SHARE of the rows that became a run
    (or a part of a combined run) to its total size, in bytes, in all of these.
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
        single: bool = False,
    ) -> None:
        """`buckets` is the number of buckets, a power of two up to 2**31; `budget_bytes` bounds the writer's memory.
        `before_commit` is called before each run is committed, and must raise an exception if the rows written so far
        must not be committed. A committed run is permanent, and reruns of the task are compared with it. `input_state`
        counts the parts of the input that are known to be sound; when the `with` block ends, all parts must be sound.
        single: write one run with all buckets, `exchange/<phase>/<key>.arrow`, even if there are no rows; at least one
        table must be written then, if only an empty one.
        """
        if buckets < 1 or buckets & (buckets - 1) or buckets > 1 << 31:
            raise ValueError(f"the number of buckets is {buckets}; it must be a power of two up to 2**31")
        self._directory, self._prefix, self._buckets = context.step_directory, f"exchange/{phase}/{key}", buckets
        self._run_bytes = min(max(1, budget_bytes // 2), 1 << 30)  # columns with 32-bit offsets must stay below 2 GiB
        self._before_commit, self._input = before_commit, input_state
        self._single, self._each = single, 1 if single else buckets_each(buckets)
        self._bucket_type = np.uint16 if buckets <= 1 << 16 else np.uint32
        self._tables: list[pa.Table] = []
        self._pending: list[np.ndarray] = []
        self._bytes = 0
        self._parts: list[_StagedRun] = []  # will become one run
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
                self._stage()
                self._commit_sound()
                assert not self._staged, "the input has ended, so all of it must be sound"

    def _discard(self) -> None:
        self._tables, self._pending = [], []
        for run in (*self._parts, *self._staged):
            run.staging.close()
        self._parts.clear()
        self._staged.clear()

    def write(self, table: pa.Table, bucket: np.ndarray) -> None:
        """Append rows; `bucket` holds each row's bucket number, in [0, buckets). A new schema starts a new run."""
        if len(bucket) != table.num_rows:
            raise ValueError(f"there are {table.num_rows} rows, but {len(bucket)} bucket numbers; give one per row")
        if not table.num_rows:
            if self._single and not self._parts and not self._tables:
                self._tables, self._pending = [table], [bucket.astype(self._bucket_type)]
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
        tables, bucket = self._tables, np.concatenate(self._pending)
        most = max(1, WINDOW_BYTES * len(bucket) // max(1, self._bytes))
        if self._each > 1:
            sizes = np.concatenate([row_sizes(table) for table in tables])
            self._add_heavy(np.bincount(bucket, sizes).astype(np.int64))
            tables = with_fine_buckets(tables, self._pending, self._each)
        self._tables, self._pending, self._bytes = [], [], 0
        with ExitStack() as stack:
            local = stack.enter_context(atomic.staging(self._next_url()))
            index = write_run(local, ScatteredRows(tables), bucket // self._each, self._buckets // self._each, most)
            self._parts.append(_StagedRun(local, index, self._input.begun, stack.pop_all()))
        if self._each == 1:
            self._add_heavy(np.diff(index.offsets))
        if not self._single and len(self._parts) == (COMBINED_RUNS if self._each > 1 else 1):
            self._stage()
        self._commit_sound()
        if not urls.is_local(self._directory) and self._staged_bytes() > STAGED_BYTES:
            self._input.verify()
            self._commit_sound()

    def _add_heavy(self, sizes: np.ndarray) -> None:
        heavy = np.flatnonzero(sizes > HEAVY_SHARE * sizes.sum())
        self.heavy.update({int(bucket): int(sizes[bucket]) for bucket in heavy})

    def _path(self, number: int) -> str:
        return f"{self._prefix}.arrow" if self._single else map_run(self._prefix, number, self._each)

    def _next_url(self) -> str:
        return urls.join(self._directory, self._path(len(self.runs) + len(self._staged)))

    def _stage(self) -> None:
        """Combine the parts into one run, which waits to be committed."""
        parts, self._parts = self._parts, []
        if len(parts) < 2:
            self._staged.extend(parts)
            return
        with ExitStack() as stack, ExitStack() as done:
            for part in parts:
                done.enter_context(part.staging)
            local = stack.enter_context(atomic.staging(self._next_url()))
            index = copy_runs(local, [(part.local, part.index) for part in parts])
            self._staged.append(_StagedRun(local, index, parts[-1].needs, stack.pop_all()))

    def _staged_bytes(self) -> int:
        return sum(run.local.stat().st_size for run in (*self._staged, *self._parts))

    def _commit_sound(self) -> None:
        """Commit, in order, the runs before the first one whose input is not yet known to be sound."""
        while self._staged and self._staged[0].needs <= self._input.sound:
            path = self._path(len(self.runs))
            self._commit(self._staged.popleft(), path)

    def _commit(self, run: _StagedRun, path: str) -> None:
        url = urls.join(self._directory, path)
        with run.staging:
            self._before_commit()
            data = atomic.commit_file(run.local, url)
        sidecar = atomic.commit_bytes(run.index.encode(), url + INDEX_SUFFIX)
        self._outputs.append(OutputFile(path, data.bytes, data.xxh3, run.index.rows))
        self._outputs.append(OutputFile(path + INDEX_SUFFIX, sidecar.bytes, sidecar.xxh3))
        self.runs.append(path)


def _refuse_dictionaries(schema: pa.Schema) -> None:
    for field in schema:
        if types.is_dictionary(field.type):
            raise ColumnError(f"column {field.name!r} is dictionary-encoded; cast it to {field.type.value_type} first")
