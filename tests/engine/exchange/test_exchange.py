"""The exchange loses no row, doubles none, keeps their order, and asks storage for little."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datakit.engine.exchange import exchange, merge, run_file
from datakit.engine.exchange.exchange import ExchangeWriter, merged, read_buckets
from datakit.engine.inline import run_plan_inline
from datakit.engine.task import Output, Plan, Step, TaskContext
from datakit.errors import ColumnError, CorruptError, NotFoundError
from datakit.storage import urls
from datakit.storage.row_size import row_sizes
from tests.support.s3 import s3_root

PLAIN = pa.schema([("n", pa.int64()), ("text", pa.large_string())])
WIDE = pa.schema(
    [
        ("n", pa.int64()),
        ("text", pa.large_string()),
        ("tags", pa.list_(pa.string())),
        ("turns", pa.list_(pa.struct([("role", pa.string()), ("score", pa.float32())]))),
        ("flag", pa.bool_()),
    ]
)
OTHER = pa.schema([("n", pa.int64()), ("id", pa.string())], metadata={"origin": "elsewhere"})

TEXT = st.one_of(st.none(), st.text(max_size=12), st.just("long " * 60))
ROWS = {
    "plain": (PLAIN, st.fixed_dictionaries({"text": TEXT})),
    "wide": (
        WIDE,
        st.fixed_dictionaries(
            {
                "text": TEXT,
                "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
                "turns": st.none()
                | st.lists(st.fixed_dictionaries({"role": st.text(max_size=3), "score": st.just(0.5)}), max_size=2),
                "flag": st.sampled_from([None, True, False]),
            }
        ),
    ),
    "other": (OTHER, st.fixed_dictionaries({"id": st.text(max_size=5)})),
}


@dataclass
class Written:
    """What a map task was given: tables with the bucket of each row."""

    tables: list[tuple[pa.Table, np.ndarray]] = field(default_factory=list)


@st.composite
def maps(draw: st.DrawFn, buckets: int) -> list[Written]:
    """A few map tasks, each with a few tables of any of three schemas. `n` numbers all rows."""
    counter = 0
    everything = []
    for _ in range(draw(st.integers(1, 5))):
        written = Written()
        for _ in range(draw(st.integers(0, 4))):
            schema, rows = ROWS[draw(st.sampled_from(sorted(ROWS)))]
            records = draw(st.lists(rows, max_size=12))
            numbered = [{"n": counter + i, **record} for i, record in enumerate(records)]
            counter += len(records)
            bucket = draw(st.lists(st.integers(0, buckets - 1), min_size=len(records), max_size=len(records)))
            written.tables.append((pa.Table.from_pylist(numbered, schema), np.array(bucket, np.int64)))
        everything.append(written)
    return everything


def write_all(directory: str, everything: list[Written], buckets: int, budget: int) -> list[str]:
    runs: list[str] = []
    for number, written in enumerate(everything):
        context = TaskContext(directory, Path(tempfile.gettempdir()))
        with ExchangeWriter(context, "route", f"{number:05d}", buckets, budget) as writer:
            for table, bucket in written.tables:
                writer.write(table, bucket)
        runs += writer.runs
    return runs


def merge_inline(directory: str, runs: list[str], readers: int) -> list[str]:
    """`merged` as a stage would use it, with its tasks run for real."""
    found: list[str] = []

    def plan() -> Plan:
        found.extend((yield from merged(Step("stage", "set", directory, "0" * 32, {}), "route", runs, readers)))
        return Output([], PLAIN)

    run_plan_inline(plan(), directory)
    return found


def rows_by_bucket(everything: list[Written], buckets: int) -> list[list[tuple]]:
    """The specification: each bucket's rows in the order (map, order written), as plain Python."""
    expected: list[list[tuple]] = [[] for _ in range(buckets)]
    for written in everything:
        for table, bucket in written.tables:
            for row, place in zip(table.to_pylist(), bucket, strict=True):
                expected[place].append((table.schema.names, row))
    return expected


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_every_reader_gets_exactly_the_rows_of_its_buckets_in_order(data: st.DataObject) -> None:
    buckets = data.draw(st.sampled_from([1, 2, 8, 64]))
    everything = data.draw(maps(buckets))
    budget = data.draw(st.sampled_from([1, 300, 2_000, 1 << 20]))
    window = data.draw(st.sampled_from([1, 700, 1 << 20]))
    cuts = sorted(data.draw(st.sets(st.integers(1, buckets), max_size=5)) | {buckets})
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "WINDOW_BYTES", window)
        patch.setattr(merge, "WINDOW_BYTES", window)
        patch.setattr(run_file, "PIECE_BYTES", max(64, window))
        patch.setattr(run_file, "HEAD_BYTES", data.draw(st.sampled_from([40, 400, 1 << 16])))
        runs = write_all(directory, everything, buckets, budget)
        if data.draw(st.booleans()) and runs:
            patch.setattr(merge, "MOST_READS", 0)
            runs = merge_inline(directory, runs, 1)
        assert_readers_get(directory, runs, rows_by_bucket(everything, buckets), cuts)


def assert_readers_get(directory: str, runs: list[str], expected: list[list[tuple]], cuts: list[int]) -> None:
    for first, stop in zip([0, *cuts], cuts, strict=False):
        tables = list(read_buckets(directory, runs, first, stop, Path(directory)))
        assert all(table.num_rows for table in tables)
        got = [(table.schema.names, row) for table in tables for row in table.to_pylist()]
        if stop == first + 1:
            assert got == expected[first]
        bucket_of = {row["n"]: bucket for bucket in range(first, stop) for _, row in expected[bucket]}
        by_bucket = sorted(got, key=lambda entry: bucket_of[entry[1]["n"]])  # stable: keeps each bucket's order
        assert by_bucket == [row for bucket in expected[first:stop] for row in bucket]
        for table in tables:
            places = [bucket_of[n] for n in table["n"].to_pylist()]
            assert places == sorted(places), "the rows of a table are ordered by bucket"


def some_rows(count: int, seed: int = 7, width: int = 40) -> tuple[pa.Table, np.ndarray]:
    random = np.random.default_rng(seed)
    texts = ["w" * int(size) if size else None for size in random.integers(0, width, count)]
    table = pa.table({"n": np.arange(count), "text": pa.array(texts, pa.large_string())}, schema=PLAIN)
    return table, random.integers(0, 32, count)


def files_below(directory: Path) -> dict[str, bytes]:
    return {info.path: (directory / info.path).read_bytes() for info in urls.listing(str(directory))}


def test_bytes_do_not_depend_on_how_the_rows_arrived(tmp_path: Path) -> None:
    table, bucket = some_rows(3_000)
    for name, size in [("one", 3_000), ("some", 701), ("single", 1)]:
        pieces = [(table.slice(start, size), bucket[start : start + size]) for start in range(0, 3_000, size)]
        runs = write_all(str(tmp_path / name), [Written(pieces)], 32, 40_000)
        assert len(runs) > 3
    assert files_below(tmp_path / "one") == files_below(tmp_path / "some") == files_below(tmp_path / "single")


def test_the_same_attempt_twice_writes_the_same_files(tmp_path: Path) -> None:
    table, bucket = some_rows(500)
    first = write_all(str(tmp_path), [Written([(table, bucket)])], 32, 4_000)
    assert write_all(str(tmp_path), [Written([(table, bucket)])], 32, 4_000) == first  # commits compare equal
    merged_runs = merge_inline_always(str(tmp_path), first)
    assert merge_inline_always(str(tmp_path), first) == merged_runs


def merge_inline_always(directory: str, runs: list[str]) -> list[str]:
    return merge_inline(directory, runs, merge.MOST_READS // len(runs) + 1)


def test_a_run_is_a_plain_arrow_stream_with_one_batch_a_bucket(tmp_path: Path) -> None:
    table, bucket = some_rows(500)
    (run,) = write_all(str(tmp_path), [Written([(table, bucket % 4 * 8)])], 32, 1 << 20)
    with pa.ipc.open_stream(tmp_path / run) as stream:
        batches = list(stream)
    assert len(batches) == 4
    assert pa.Table.from_batches(batches).sort_by("n") == table


def test_merging_is_inserted_only_above_a_million_reads() -> None:
    runs = [f"exchange/route/{number:05d}-00000.arrow" for number in range(1_001)]
    plan = merged(Step("stage", "set", "unused", "0" * 32, {}), "route", runs[:1_000], 1_000)
    with pytest.raises(StopIteration) as stop:
        next(plan)
    assert stop.value.value == runs[:1_000]
    phase = next(merged(Step("stage", "set", "unused", "0" * 32, {}), "route", runs, 1_000))
    assert len(phase.tasks) == 32  # groups of sqrt(1,001), rounded up
    assert [run for task in phase.tasks for run in task.arguments["runs"]] == runs


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    """Counts every call to the storage layer that would be a request to a store."""
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
    urls.remove_tree("memory://exchange-requests")


def test_requests_at_2000_maps_and_2000_reducers_stay_linear(requests: Counter, tmp_path: Path) -> None:
    maps, reducers, buckets = 2_000, 2_000, 2_048
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
    assert not requests, "writing asks for nothing"

    merged_runs = merge_inline(root, runs, reducers)
    merge_requests = requests.total()
    assert len(merged_runs) == 45
    assert merge_requests <= 2 * maps  # one index and one range of each run

    requests.clear()
    everything, sample = np.concatenate(placed), range(0, reducers, 100)
    for reducer in sample:
        first, stop = reducer * buckets // reducers, (reducer + 1) * buckets // reducers
        found = [table["n"].to_numpy() for table in read_buckets(root, merged_runs, first, stop, tmp_path)]
        expected = np.flatnonzero((everything >= first) & (everything < stop))
        np.testing.assert_array_equal(np.sort(np.concatenate(found)), expected)
    each = requests.total() / len(sample)
    total = merge_requests + each * reducers
    print(
        f"\n2,000 x 2,000: merge {merge_requests} requests, {each:.1f} a reducer, {total:,.0f} in all", file=sys.stderr
    )
    assert each <= 2 * len(merged_runs)
    assert total < 0.05 * maps * reducers
    assert not list(tmp_path.iterdir()), "ranges leave no file in scratch"


def test_runs_in_an_object_store_are_read_like_local_ones(tmp_path: Path) -> None:
    with s3_root() as root:
        compare_with_local(root, tmp_path)


def compare_with_local(root: str, tmp_path: Path) -> None:
    table, bucket = some_rows(400)
    remote, local = (write_all(place, [Written([(table, bucket)])], 32, 9_000) for place in (root, str(tmp_path / "l")))
    assert remote == local
    here = list(read_buckets(str(tmp_path / "l"), local, 3, 20, tmp_path))
    assert list(read_buckets(root, remote, 3, 20, tmp_path)) == here
    joined = pa.concat_tables(here).sort_by("n")
    again = list(read_buckets(root, merge_inline_always(root, remote), 3, 20, tmp_path))
    assert pa.concat_tables(again).sort_by("n") == joined


def test_runs_of_different_shuffles_are_not_merged(tmp_path: Path) -> None:
    table, bucket = some_rows(30)
    runs = []
    for key, buckets in (("a", 32), ("b", 64)):
        with ExchangeWriter(TaskContext(str(tmp_path), tmp_path), "route", key, buckets) as writer:
            writer.write(table, bucket)
        runs += writer.runs
    with pytest.raises(CorruptError, match="the runs of route-merge differ in their number of buckets"):
        merge_inline_always(str(tmp_path), runs)


MEMORY_PROGRAM = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa
from datakit.engine.exchange.exchange import ExchangeWriter, read_buckets
from datakit.engine.task import TaskContext

def table(seed):  # 8 MB: 4,000 texts of 2,000 bytes
    data = np.random.default_rng(seed).integers(97, 123, 8_000_000, np.uint8)
    offsets = np.arange(0, 8_000_001, 2_000, dtype=np.int64)
    return pa.table({"text": pa.LargeStringArray.from_buffers(4_000, pa.py_buffer(offsets), pa.py_buffer(data))})

def memory(field):
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(fields[field].split()[0]) * 1024

directory, budget, skew = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "skew"
context = TaskContext(directory, Path(directory))
with ExchangeWriter(context, "route", "warm", 64, 1 << 20) as writer:
    writer.write(table(0).slice(0, 64), np.arange(64))
before = memory("VmHWM")
with ExchangeWriter(context, "route", "k", 64, budget) as writer:
    for seed in range(48):
        rows = table(seed)
        writer.write(rows, np.zeros(4_000, np.int64) if skew else np.arange(4_000) % 64)
        del rows
written, held = memory("VmHWM") - before, memory("RssAnon")
rows = sum(found.num_rows for found in read_buckets(directory, writer.runs, 0, 64, Path(directory)))
print(written, memory("RssAnon") - held, rows)
"""


@pytest.mark.parametrize("shape", ["even", "skew"])
def test_a_writer_holds_its_budget_and_a_reader_nothing(tmp_path: Path, shape: str) -> None:
    budget = 128 << 20  # 384 MB are written
    program = [sys.executable, "-c", MEMORY_PROGRAM, str(tmp_path), str(budget), shape]
    run = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    written, read, rows = map(int, run.stdout.split())
    print(
        f"\n{shape}: writer {written >> 20} MiB above its start, reader {read >> 20} MiB for {rows} rows",
        file=sys.stderr,
    )
    assert written < budget * 1.15 + (24 << 20)  # the budget, the table in hand and its making
    assert read < 16 << 20
    assert rows == 48 * 4_000


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    context = TaskContext(str(tmp_path), tmp_path)
    table, _ = some_rows(3)
    writer = ExchangeWriter(context, "route", "k", 4)
    with pytest.raises(ValueError, match="power of two"):
        ExchangeWriter(context, "route", "k", 1_000)
    with pytest.raises(ValueError, match="3 rows and 2"):
        writer.write(table, np.array([0, 1]))
    for bucket in ([0, 1, 4], [0, -1, 2]):
        with pytest.raises(ValueError, match="must be in 0 to 3"):
            writer.write(table, np.array(bucket))
    with pytest.raises(ColumnError, match="'kind' is dictionary-encoded; cast it to string"):
        writer.write(pa.table({"kind": pa.array(["a"]).dictionary_encode()}), np.array([0]))


def test_an_error_in_the_block_commits_no_further_run(tmp_path: Path) -> None:
    table, bucket = some_rows(30)
    with (
        pytest.raises(RuntimeError, match="stop"),
        ExchangeWriter(TaskContext(str(tmp_path), tmp_path), "route", "k", 32) as writer,
    ):
        writer.write(table, bucket)
        raise RuntimeError("stop")
    assert urls.listing(str(tmp_path)) == []


def test_damage_is_named(tmp_path: Path) -> None:
    table, bucket = some_rows(300)
    (run,) = write_all(str(tmp_path), [Written([(table, bucket)])], 32, 1 << 20)
    data, index = tmp_path / run, tmp_path / f"{run}.index"
    whole, offsets = data.read_bytes(), index.read_bytes()

    def read() -> int:
        return sum(found.num_rows for found in read_buckets(str(tmp_path), [run], 0, 32, tmp_path))

    assert read() == 300
    data.write_bytes(whole[:-100])
    with pytest.raises(CorruptError, match="cut short"):
        read()
    data.write_bytes(whole[:1_000] + bytes(64) + whole[1_064:])
    index.write_bytes(offsets[:-16])
    with pytest.raises(CorruptError, match=r"index is cut short"):
        read()
    index.write_bytes(b"something else entirely, and long enough for a header")
    with pytest.raises(CorruptError, match="not the index of an exchange file"):
        read()
    index.write_bytes(offsets)
    data.unlink()
    with pytest.raises(NotFoundError, match=r"00000\.arrow does not exist"):
        read()


def test_row_sizes_count_values_at_any_depth() -> None:
    table = pa.table(
        {
            "a": pa.array(["xyz", None, "é"], pa.large_string()),
            "b": pa.array([[1, 2], None, []], pa.list_(pa.int16())),
            "c": pa.array([{"d": "ab", "e": True}, None, {"d": "", "e": None}]),
            "f": pa.array([[("k", "vv")], [], None], pa.map_(pa.string(), pa.string())),
            "g": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
            "h": pa.nulls(3),
        }
    )
    sizes = np.array([3 + 8 + 3 + 7 + 8, 0 + 4 + 1 + 4 + 8, 2 + 4 + 1 + 4 + 8])
    np.testing.assert_array_equal(row_sizes(table), sizes)
    np.testing.assert_array_equal(row_sizes(table.slice(1, 2)), sizes[1:])
    np.testing.assert_array_equal(row_sizes(pa.concat_tables([table.slice(2), table])), sizes[[2, 0, 1, 2]])
    with pytest.raises(ColumnError, match="'v' has type string_view"):
        row_sizes(pa.table({"v": pa.array(["x"], pa.string_view())}))
