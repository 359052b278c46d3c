"""Sorting: exact duplicates, and partitions smaller than a bucket."""

from __future__ import annotations

import gzip
import json
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from datakit.engine.exchange import exchange, scattered_rows
from datakit.engine.task import Phase, Plan
from datakit.normalize import duplicates, route, sort
from datakit.normalize import stage as normalize_stage
from datakit.normalize.readers import slices
from tests.support.engine.inline import run_plan_inline
from tests.support.normalize.sources import check_contract, normalize, normalize_step, write_lines


def test_partitions_may_share_a_bucket(tmp_path: Path) -> None:
    """Text that compresses a hundredfold gets too few buckets, since they are estimated from the bytes on disk."""
    lines = [{"text": f"{number} " + "again and again " * 500} for number in range(200)]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(data))
    with patch.object(slices, "FILE_OVERHEAD", 0):
        result = normalize(tmp_path, tmp_path / "in.jsonl.gz", partition_bytes=200_000)
    assert len(result.manifest.partitions) == 16
    assert {index.split("/")[-1] for r in result.results for index in r.details.get("runs", ())}
    check_contract(result)


def test_copies_in_a_shared_bucket_are_not_held(tmp_path: Path) -> None:
    """Only the first copy is taken out of the bucket, which is mapped into memory."""
    lines = [{"text": "again and again " * 500} for _ in range(1_000)]
    lines += [{"text": f"{number} " + "and again " * 500} for number in range(200)]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(data))
    about, allocated = duplicates.about, list[int]()

    def watched(rows: pa.Table, source_id: str | None) -> pa.Table:
        allocated.append(pa.total_allocated_bytes())
        return about(rows, source_id)

    with (
        patch.object(slices, "FILE_OVERHEAD", 0),
        patch.object(sort, "ADDED_ROWS", 20),
        patch.object(duplicates, "about", watched),
    ):
        result = normalize(tmp_path, tmp_path / "in.jsonl.gz", partition_bytes=2_000_000)
    assert len(result.manifest.partitions) == 8
    assert result["duplicates"] == 999
    assert max(allocated) - min(allocated) < 2_000_000 < 999 * 8_000
    check_contract(result)


def test_first_of_equal_texts_is_kept(tmp_path: Path) -> None:
    source = tmp_path / "in"
    write_lines(source / "b.jsonl", {"id": "b1", "text": "same"}, {"id": "b2", "text": "other"})
    write_lines(source / "a.jsonl", {"id": "a1", "text": "alone"}, {"id": "a2", "text": "same"}, {"text": "same"})
    result = normalize(tmp_path, source)
    check_contract(result)
    assert {row["text"]: row["source_id"] for row in result.rows()} == {"alone": "a1", "same": "a2", "other": "b2"}
    same = xxhash.xxh3_128_hexdigest(b"same")
    assert result.duplicates() == [
        {"id": same, "source_id": None, "kept_source_id": "a2"},
        {"id": same, "source_id": "b1", "kept_source_id": "a2"},
    ]
    assert result["duplicates"] == 2


def many_columns(directory: Path) -> Path:
    """A source with strings, lists, maps and duplicates."""
    letters = "abcdefghij"
    rows = [
        {
            "id": f"r{number}",
            "text": f"text {number % 150}",
            "html": letters * (number % 17),
            "tags": list(letters[: number % 5]),
            "map": [(letter, number) for letter in letters[: number % 3]],
        }
        for number in range(200)
    ]
    directory.mkdir()
    kinds = [pa.string(), pa.string(), pa.string(), pa.list_(pa.string()), pa.map_(pa.string(), pa.int64())]
    schema = pa.schema(list(zip(rows[0], kinds, strict=True)))
    for name, part in (("a", rows[:90]), ("b", rows[90:])):
        pq.write_table(pa.Table.from_pylist(part, schema), directory / f"{name}.parquet", row_group_size=20)
    return directory


def test_bytes_do_not_depend_on_the_pieces_in_memory(tmp_path: Path) -> None:
    """A column of strings cannot hold more than 2 GiB, so the rows of a partition are held in pieces."""
    source = many_columns(tmp_path / "in")
    whole = normalize(tmp_path / "whole", source)
    with ExitStack() as limits:
        limits.enter_context(patch.object(scattered_rows, "PIECE_BYTES", 900))
        limits.enter_context(patch.object(sort, "ADDED_ROWS", 7))
        limits.enter_context(patch.object(exchange, "MOST_RUN_BYTES", 700))
        pieces = normalize(tmp_path / "pieces", source)
    check_contract(pieces)
    assert pieces["duplicates"] == 50
    assert pieces.files() == whole.files()
    runs = [sum(".index" not in file.path for file in done.outputs) for done in pieces.results]
    assert max(runs) > 5, "no run may exceed the limit"


@pytest.mark.parametrize("column", ["text", "html"])
def test_budget_of_a_partition_grows_with_giant_documents_but_not_with_copies(tmp_path: Path, column: str) -> None:
    """All copies are in one partition, which is read first because it is the largest, but the copies are not held."""
    copies = [{"id": f"r{number}", "text": "the same"} for number in range(5_000)]
    giant = {"text": "short", column: "a" * 40_000}
    lines = [*copies, giant, *({"text": f"text {number}"} for number in range(500)), giant]
    write_lines(tmp_path / "in.jsonl", *lines)
    step = normalize_step(tmp_path / "out", str(tmp_path / "in.jsonl"), partition_bytes=20_000)
    phases: list[Phase] = []

    def watched(plan: Plan) -> Plan:
        results = None
        while True:
            try:
                phases.append(plan.send(results))  # pyright: ignore[reportArgumentType]
            except StopIteration as stop:
                return stop.value
            results = yield phases[-1]

    with patch.object(route, "GIANT_BYTES", 30_000):
        _, results = run_plan_inline(watched(normalize_stage.plan(step)), step.directory)
    (sorting,) = (phase for phase in phases if phase.name == sort.PHASE)
    *tasks, _ = sorting.tasks  # the last task writes the list of files
    largest = max(tasks, key=lambda task: task.input_bytes)
    held = {task.key: done.records for task, done in zip(tasks, results[-len(tasks) - 1 : -1], strict=True)}
    assert held[largest.key] > 5_000, "the partition with the copies"
    assert largest.input_bytes > 5_000 * 32 > 3 * min(task.input_bytes for task in tasks)
    usual, *others = sorted({task.held_bytes or 0 for task in tasks})
    assert [40_000 <= held_bytes - usual < 40_100 for held_bytes in others] == [True], "one holds the giant, once"
    assert sum(task.held_bytes == usual for task in tasks) == len(tasks) - 1


def test_partitions_are_sized_by_all_columns(tmp_path: Path) -> None:
    source = many_columns(tmp_path / "in")
    with_html = normalize(tmp_path / "html", source, partition_bytes=8_000)
    without = normalize(tmp_path / "text", source, partition_bytes=8_000, drop=("html",))
    assert (len(with_html.manifest.partitions), len(without.manifest.partitions)) == (4, 1)
    check_contract(with_html)
