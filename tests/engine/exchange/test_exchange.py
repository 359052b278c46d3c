"""The exchange neither loses nor duplicates rows, and keeps their order."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datakit.engine.exchange import exchange, merge, read_runs, run_file, run_names
from datakit.engine.exchange.exchange import ExchangeWriter, in_pieces, read_buckets
from datakit.engine.task import TaskContext
from datakit.errors import ColumnError
from datakit.storage import urls
from tests.support.engine.exchange_runs import PLAIN, Written, merge_inline, merge_inline_always, some_rows, write_all
from tests.support.s3 import s3_root

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


@st.composite
def maps(draw: st.DrawFn, buckets: int) -> list[Written]:
    """Draw a few map tasks, each with a few tables of any of three schemas. `n` numbers all rows."""
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


def rows_by_bucket(everything: list[Written], buckets: int) -> list[list[tuple]]:
    """Return each bucket's rows in the order (map, order written): the specification, in plain Python."""
    expected: list[list[tuple]] = [[] for _ in range(buckets)]
    for written in everything:
        for table, bucket in written.tables:
            for row, place in zip(table.to_pylist(), bucket, strict=True):
                expected[place].append((table.schema.names, row))
    return expected


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_readers_get_exactly_the_rows_of_their_buckets(data: st.DataObject) -> None:
    check_random_exchange(data)


@pytest.mark.soak
@settings(max_examples=1_000, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_readers_get_exactly_the_rows_of_their_buckets_in_a_soak(data: st.DataObject) -> None:
    check_random_exchange(data)


def check_random_exchange(data: st.DataObject) -> None:
    buckets = data.draw(st.sampled_from([1, 2, 8, 64]))
    everything = data.draw(maps(buckets))
    budget = data.draw(st.sampled_from([1, 300, 2_000, 1 << 20]))
    window = data.draw(st.sampled_from([1, 700, 1 << 20]))
    cuts = sorted(data.draw(st.sets(st.integers(1, buckets), max_size=5)) | {buckets})
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "WINDOW_BYTES", window)
        most = data.draw(st.sampled_from([1, 4, 1 << 10]))
        patch.setattr(run_names, "MOST_BUCKETS", most)
        patch.setattr(exchange, "COMBINED_RUNS", data.draw(st.integers(1, 3)))
        patch.setattr(run_file, "PIECE_BYTES", max(64, window))
        patch.setattr(run_file, "HEAD_BYTES", data.draw(st.sampled_from([40, 400, 1 << 16])))
        runs = write_all(directory, everything, buckets, budget)
        if most < buckets or data.draw(st.booleans()):
            patch.setattr(merge, "MOST_READS", 0)
            patch.setattr(merge, "TASK_BYTES", data.draw(st.sampled_from([1, 3, 1 << 30])))
            runs = merge_inline(directory, runs, buckets, buckets)
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


def files_below(directory: Path) -> dict[str, bytes]:
    return {info.path: (directory / info.path).read_bytes() for info in urls.listing(str(directory))}


def test_bytes_do_not_depend_on_table_boundaries(tmp_path: Path) -> None:
    table, bucket = some_rows(3_000)
    for name, size in [("one", 3_000), ("some", 701), ("single", 1)]:
        pieces = [(table.slice(start, size), bucket[start : start + size]) for start in range(0, 3_000, size)]
        runs = write_all(str(tmp_path / name), [Written(pieces)], 32, 40_000)
        assert len(runs) > 3
    assert files_below(tmp_path / "one") == files_below(tmp_path / "some") == files_below(tmp_path / "single")


def test_a_large_table_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row comes once, in order, and no piece holds more than it needs to reach the size."""
    monkeypatch.setattr(read_runs, "PIECE_BYTES", 1_000)
    tables = [pa.table({"n": pa.array(range(first, first + 999))}) for first in (0, 999)]
    batches = [pa.Table.from_batches(table.to_batches(max_chunksize=30)) for table in tables]
    pieces = list(in_pieces([*batches, tables[0].slice(0, 0)]))
    assert pa.concat_tables(pieces).equals(pa.concat_tables(tables))
    assert max(piece.num_rows for piece in pieces) <= 150  # five batches of 240 bytes


def test_repeated_attempt_writes_equal_files(tmp_path: Path) -> None:
    table, bucket = some_rows(500)
    first = write_all(str(tmp_path), [Written([(table, bucket)])], 32, 4_000)
    assert write_all(str(tmp_path), [Written([(table, bucket)])], 32, 4_000) == first  # commits compare equal
    merged_runs = merge_inline_always(str(tmp_path), first)
    assert merge_inline_always(str(tmp_path), first) == merged_runs


def test_runs_on_s3_are_read_like_local_ones(tmp_path: Path) -> None:
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
def test_writer_stays_within_its_budget(tmp_path: Path, shape: str) -> None:
    budget = 128 << 20  # 384 MB are written
    program = [sys.executable, "-c", MEMORY_PROGRAM, str(tmp_path), str(budget), shape]
    run = subprocess.run(program, capture_output=True, text=True, timeout=300, check=True)
    written, read, rows = map(int, run.stdout.split())
    print(
        f"\n{shape}: writer {written >> 20} MiB above its start, reader {read >> 20} MiB for {rows} rows",
        file=sys.stderr,
    )
    assert written < budget * 1.15 + (24 << 20)  # the budget, the current table, and building it
    assert read < 16 << 20
    assert rows == 48 * 4_000


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    context = TaskContext(str(tmp_path), tmp_path)
    table, _ = some_rows(3)
    writer = ExchangeWriter(context, "route", "k", 4)
    with pytest.raises(ValueError, match="power of two"):
        ExchangeWriter(context, "route", "k", 1_000)
    with pytest.raises(ValueError, match="3 rows, but 2"):
        writer.write(table, np.array([0, 1]))
    for bucket in ([0, 1, 4], [0, -1, 2]):
        with pytest.raises(ValueError, match="only 0 to 3 exist"):
            writer.write(table, np.array(bucket))
    with pytest.raises(ColumnError, match="'kind' is dictionary-encoded; cast it to string"):
        writer.write(pa.table({"kind": pa.array(["a"]).dictionary_encode()}), np.array([0]))


def test_error_in_the_block_commits_no_run(tmp_path: Path) -> None:
    table, bucket = some_rows(30)
    with (
        pytest.raises(RuntimeError, match="stop"),
        ExchangeWriter(TaskContext(str(tmp_path), tmp_path), "route", "k", 32) as writer,
    ):
        writer.write(table, bucket)
        raise RuntimeError("stop")
    assert urls.listing(str(tmp_path)) == []
