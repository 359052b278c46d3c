"""Merging keeps the number of requests far below maps times reducers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from datakit.engine.exchange import merge
from datakit.engine.exchange.exchange import ExchangeWriter, merged, read_buckets
from datakit.engine.task import Step, TaskContext
from datakit.errors import CorruptError
from datakit.storage import removal, urls
from tests.support.engine.exchange_runs import merge_inline, merge_inline_always, some_rows


def test_merge_is_used_only_above_a_million_reads() -> None:
    runs = [f"exchange/route/{number:05d}-00000.arrow" for number in range(1_001)]
    fewer, sizes = dict.fromkeys(runs[:1_000], 1), dict.fromkeys(runs, 1)
    plan = merged(Step("stage", "set", "unused", "0" * 32, {}), "route", fewer, 1_000)
    with pytest.raises(StopIteration) as stop:
        next(plan)
    assert stop.value.value == runs[:1_000]
    phase = next(merged(Step("stage", "set", "unused", "0" * 32, {}), "route", sizes, 1_000))
    assert len(phase.tasks) == 32  # groups of sqrt(1,001), rounded up
    assert [run for task in phase.tasks for run in task.arguments["runs"]] == runs
    assert sum(task.input_bytes for task in phase.tasks) == len(runs), "the sizes limit what the tasks may write"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    """Count calls to the storage layer that would be requests to a store."""
    counts: Counter = Counter()

    def counted(name: str):
        function = getattr(urls, name)

        def call(*arguments, **options):
            counts[name] += 1
            return function(*arguments, **options)

        return call

    for name in ("read_range", "read_bytes", "open_read", "size", "exists", "listing"):
        monkeypatch.setattr(urls, name, counted(name))
    yield counts
    removal.remove_tree("memory://exchange-requests")


@pytest.mark.parametrize(("maps", "reducers"), [(300, 4_000), pytest.param(2_000, 2_000, marks=pytest.mark.soak)])
def test_requests_grow_with_the_root_of_the_maps(requests: Counter, tmp_path: Path, maps: int, reducers: int) -> None:
    buckets = 4_096
    root, random = "memory://exchange-requests", np.random.default_rng(1)
    runs: list[str] = []
    placed: list[np.ndarray] = []
    for number in range(maps):
        bucket = random.integers(0, buckets, 40)
        table = pa.table({"n": np.arange(number * 40, number * 40 + 40)})
        with ExchangeWriter(TaskContext(root, tmp_path), "route", f"{number:05d}", buckets) as writer:
            writer.write(table, bucket)
        runs += writer.runs
        placed.append(bucket)
    assert not requests, "writing made requests"

    merged_runs = merge_inline(root, runs, reducers)
    merge_requests = requests.total()
    assert len(merged_runs) == -(-maps // (math.isqrt(maps - 1) + 1))
    assert merge_requests <= 2 * maps  # one index and one range of each run

    requests.clear()
    everything, sample = np.concatenate(placed), range(0, reducers, reducers // 20)
    for reducer in sample:
        first, stop = reducer * buckets // reducers, (reducer + 1) * buckets // reducers
        found = [table["n"].to_numpy() for table in read_buckets(root, merged_runs, first, stop, tmp_path)]
        expected = np.flatnonzero((everything >= first) & (everything < stop))
        np.testing.assert_array_equal(np.sort(np.concatenate([np.empty(0, np.int64), *found])), expected)
    each = requests.total() / len(sample)
    assert each <= 2 * len(merged_runs)
    assert not list(tmp_path.iterdir()), "ranges leave no file in scratch"


def test_runs_of_different_shuffles_are_not_merged(tmp_path: Path) -> None:
    table, bucket = some_rows(30)
    runs = []
    for key, buckets in (("a", 32), ("b", 64)):
        with ExchangeWriter(TaskContext(str(tmp_path), tmp_path), "route", key, buckets) as writer:
            writer.write(table, bucket)
        runs += writer.runs
    with pytest.raises(CorruptError, match="the runs of route-merge differ in their number of buckets"):
        merge_inline_always(str(tmp_path), runs)


def test_memory_for_indexes_does_not_grow_with_runs_and_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Indexes that do not fit are read again in ranges of buckets, and the merged run is the same."""
    runs, held = [], []
    for number in range(40):
        table, bucket = some_rows(30, number)
        with ExchangeWriter(TaskContext(str(tmp_path), tmp_path), "route", f"{number:05d}", 32) as writer:
            writer.write(table, bucket)
        runs += writer.runs
    files = [Path(tmp_path, path).read_bytes() for path in merge_inline_always(str(tmp_path), runs)]
    read_index = merge.read_index

    def counted(url: str, first: int = 0, stop: int | None = None):
        index = read_index(url, first, stop)
        held.append(len(index.offsets) * 8)
        return index

    monkeypatch.setattr(merge, "read_index", counted)
    monkeypatch.setattr(merge, "INDEX_BYTES", 800)
    for path in Path(tmp_path, "exchange/route-merge").iterdir():
        path.unlink()
    again = merge_inline_always(str(tmp_path), runs)
    assert [Path(tmp_path, path).read_bytes() for path in again] == files
    size = math.isqrt(len(runs) - 1) + 1
    assert sum(sorted(held)[:size]) <= 800 + 8 * size, "a range of each index in a group at once"


def test_merged_run_of_many_schemas_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for number in range(12):
        table, bucket = some_rows(30, number)
        table = table.rename_columns(["n", f"text{number}"])
        with ExchangeWriter(TaskContext(str(tmp_path), tmp_path), "route", f"{number:05d}", 32) as writer:
            writer.write(table, bucket)
        runs += writer.runs
    expected = list(read_buckets(str(tmp_path), runs, 3, 9, tmp_path))
    monkeypatch.setattr(merge, "INDEX_BYTES", 2 * 32 * 8)
    merged_runs = merge_inline_always(str(tmp_path), runs)
    assert merged_runs[:2] == ["exchange/route-merge/00000.arrow", "exchange/route-merge/00000-1.arrow"]
    assert list(read_buckets(str(tmp_path), merged_runs, 3, 9, tmp_path)) == expected
