"""Merging keeps the number of requests far below maps times reducers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.engine.exchange import exchange, merge, run_names
from datakit.engine.exchange.exchange import ExchangeWriter, merged, read_buckets
from datakit.engine.task import Step, TaskContext
from datakit.errors import ColumnError, CorruptError
from datakit.storage import removal, urls
from tests.support.engine.exchange_runs import Written, merge_inline, merge_inline_always, some_rows, write_all

STEP = Step("stage", "set", "unused", "0" * 32, {})


def test_merge_is_used_only_above_a_million_reads() -> None:
    runs = [f"exchange/route/{number:05d}-00000.arrow" for number in range(1_001)]
    plan = merged(STEP, "route", dict.fromkeys(runs[:1_000], 1), 1_024, 1_000)
    with pytest.raises(StopIteration) as stop:
        next(plan)
    assert stop.value.value == runs[:1_000]
    (task,) = next(merged(STEP, "route", dict.fromkeys(runs, 5), 1_024, 1_000)).tasks
    assert (task.arguments["runs"], task.input_bytes) == (runs, 5 * len(runs))
    assert next(merged(STEP, "route", dict.fromkeys(runs[:600], 1), 1_024, 1_000, times=2))


def test_coarse_runs_are_merged_unless_reducers_read_whole_buckets() -> None:
    runs = {"exchange/route/0-00000-by-8.arrow": 1}
    with pytest.raises(StopIteration):
        next(merged(STEP, "route", runs, 8_192, 1_024))
    assert next(merged(STEP, "route", runs, 8_192, 8_192))
    with pytest.raises(ValueError, match="divides them more coarsely"):
        list(read_buckets("unused", list(runs), 3, 8, Path()))


@given(st.integers(1, 10**6), st.integers(0, 17), st.floats(0, 14.5))
def test_requests_of_any_merge_grow_with_the_root_of_maps_times_reducers(runs: int, bits: int, size: float) -> None:
    """If the sizes are such that the number of ranges is not at one of its limits."""
    readers, tasks = 1 << bits, max(1, -(-int(10**size) // merge.TASK_BYTES))
    groups, pieces = merge.divided(runs, int(10**size), readers, readers)
    assert groups <= runs <= groups * merge.MOST_RUNS
    assert groups == runs or groups * pieces >= tasks
    best = math.sqrt(tasks * readers / runs)  # the number of ranges with the fewest requests
    if 1 <= best <= min(readers, run_names.MOST_BUCKETS) and readers <= merge.MOST_PIECE_BUCKETS:
        least = readers * (2 + runs / merge.MOST_RUNS)  # even if there is one group, or one for MOST_RUNS runs
        assert runs * pieces + readers * groups <= 2.2 * math.sqrt(tasks * runs * readers) + least


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


@pytest.mark.parametrize(
    "sizes", [(48, 64, 4), (48, 64, 48), (24, 256, 2), pytest.param((1_000, 4_096, 20), marks=pytest.mark.soak)]
)
def test_requests_are_those_of_the_layout(
    requests: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int]
) -> None:
    """Each run is read once for each range of buckets, and each group of runs once by each reducer."""
    maps, reducers, task_runs = sizes
    monkeypatch.setattr(run_names, "MOST_BUCKETS", 32)
    monkeypatch.setattr(merge, "TASK_BYTES", task_runs)  # each run counts as one byte
    root, random = "memory://exchange-requests", np.random.default_rng(1)
    runs: list[str] = []
    placed: list[np.ndarray] = []
    for number in range(maps):
        bucket = random.integers(0, reducers, 40)
        table = pa.table({"n": np.arange(number * 40, number * 40 + 40)})
        with ExchangeWriter(TaskContext(root, tmp_path), "route", f"{number:05d}", reducers) as writer:
            writer.write(table, bucket)
        runs += writer.runs
        placed.append(bucket)
    assert not requests, "writing made requests"

    names = merge_inline(root, runs, reducers, reducers)
    groups, pieces = merge.divided(maps, maps, reducers, reducers)
    assert len(names) == groups
    assert requests.total() <= 2 * maps * pieces, "a part of the index and one range of each run, for each range"
    assert requests.total() <= 4 * maps * max(1, math.sqrt(reducers / task_runs))

    requests.clear()
    everything, sample = np.concatenate(placed), range(0, reducers, max(1, reducers // 20))
    for bucket in sample:
        found = [table["n"].to_numpy() for table in read_buckets(root, names, bucket, bucket + 1, tmp_path)]
        expected = np.flatnonzero(everything == bucket)
        np.testing.assert_array_equal(np.concatenate([np.empty(0, np.int64), *found]), expected)
    assert requests.total() <= 2 * groups * len(sample)
    assert not list(tmp_path.iterdir()), "ranges leave no file in scratch"


def test_a_map_task_with_many_buckets_writes_few_large_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of runs, of their batches and of their offsets does not grow with the number of buckets."""
    monkeypatch.setattr(run_names, "MOST_BUCKETS", 8)
    table, bucket = some_rows(4_000)
    (plain, coarse) = (
        write_all(str(tmp_path / str(buckets)), [Written([(table, bucket % buckets)])], buckets, 20_000)
        for buckets in (8, 32)
    )
    assert all(run.endswith("-by-4.arrow") for run in coarse)
    assert len(coarse) == -(-len(plain) // exchange.COMBINED_RUNS)
    assert len(plain) > 8
    names = merge_inline_always(str(tmp_path / "32"), coarse)
    found = [table["n"].to_numpy() for table in read_buckets(str(tmp_path / "32"), names, 5, 6, tmp_path)]
    np.testing.assert_array_equal(np.concatenate(found), np.flatnonzero(bucket == 5))


def test_runs_of_different_shuffles_are_not_merged(tmp_path: Path) -> None:
    table, bucket = some_rows(30)
    runs = []
    for key, buckets in (("a", 32), ("b", 64)):
        with ExchangeWriter(TaskContext(str(tmp_path), tmp_path), "route", key, buckets) as writer:
            writer.write(table, bucket)
        runs += writer.runs
    with pytest.raises(CorruptError, match=r"b-00000\.arrow has 64 buckets, but 32 were expected; remove"):
        merge_inline_always(str(tmp_path), runs)


def test_runs_that_earlier_versions_wrote_with_all_buckets_are_merged_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that was begun by an earlier version can have both kinds of runs."""
    tables = [some_rows(200, seed) for seed in (1, 2)]
    (fine,) = write_all(str(tmp_path), [Written([tables[0]])], 32, 1 << 20)
    monkeypatch.setattr(run_names, "MOST_BUCKETS", 4)
    with ExchangeWriter(TaskContext(str(tmp_path), tmp_path), "route", "00001", 32) as writer:
        writer.write(*tables[1])
    names = merge_inline(str(tmp_path), [fine, *writer.runs], 32, 32)
    for bucket in range(32):
        found = read_buckets(str(tmp_path), names, bucket, bucket + 1, tmp_path)
        expected = [table.filter(pa.array(places == bucket)) for table, places in tables]
        assert pa.concat_tables([tables[0][0].slice(0, 0), *found]) == pa.concat_tables(expected)


def test_rows_with_many_schemas_keep_them(tmp_path: Path) -> None:
    runs = []
    for number in range(12):
        table, bucket = some_rows(30, number)
        table = table.rename_columns(["n", f"text{number}"])
        with ExchangeWriter(TaskContext(str(tmp_path), tmp_path), "route", f"{number:05d}", 32) as writer:
            writer.write(table, bucket)
        runs += writer.runs
    expected = list(read_buckets(str(tmp_path), runs, 3, 4, tmp_path))
    names = merge_inline_always(str(tmp_path), runs)
    assert names == ["exchange/route-merge/00000-*-of-1x32.arrow"]
    assert list(read_buckets(str(tmp_path), names, 3, 4, tmp_path)) == expected


def test_a_column_with_the_name_of_the_exchanges_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_names, "MOST_BUCKETS", 2)
    table = pa.table({"fine_bucket": [1, 2]})
    with (
        pytest.raises(ColumnError, match="'fine_bucket' has a name that the exchange uses itself"),
        ExchangeWriter(TaskContext(str(tmp_path), tmp_path), "route", "k", 8) as writer,
    ):
        writer.write(table, np.array([1, 2]))
