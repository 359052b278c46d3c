"""Writes edges as phase `buckets` does, and reads the labels that phase `labels` writes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.dedup.clusters.bands import FOREST
from datakit.dedup.partitions import Part
from datakit.dedup.phase_data import ForestFiles, PartRange
from datakit.dedup.row_buckets import read_rows, row_buckets
from datakit.engine.task import OutputFile, Step, TaskContext, TaskResult
from datakit.storage.parquet import ShardWriter

ROUNDS = {  # constants with which no task can hold all nodes, and all pieces are small
    "datakit.dedup.clusters.component_phases.MOST_NODES": 20,
    "datakit.dedup.clusters.component_phases.TASK_BYTES": 1500,
    "datakit.dedup.clusters.pairs.PIECE_ROWS": 5,
    "datakit.dedup.clusters.node_tables.FEWEST_SLOTS": 2,
    "datakit.dedup.clusters.node_tables.PIECE_SLOTS": 3,
}


def edge_step(directory: Path) -> Step:
    """Return a step whose directory holds the files."""
    return Step("dedup", "test", str(directory), "1" * 32, {})


def parts_of(rows: int, count: int) -> list[Part]:
    """Return parts with nearly equal numbers of rows."""
    cuts = np.linspace(0, rows, count + 1).astype(int).tolist()
    return [
        Part("s", 0, index, count, first, stop - first, "", "", 0, 0)
        for index, (first, stop) in enumerate(pairwise(cuts))
    ]


def write_forests(directory: Path, forests: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[TaskResult]:
    """Write each pair of arrays (row, root) to a file, and return the results of the tasks that would write them."""
    return [write_forest(directory, number, *forest) for number, forest in enumerate(forests)]


def write_forest(directory: Path, number: int, row: np.ndarray, root: np.ndarray) -> TaskResult:
    """Write one forest."""
    path = f"exchange/forest/bucket-{number:05d}.parquet"
    with ShardWriter(f"{directory}/{path}", FOREST) as writer:
        writer.write(pa.table([row, root], schema=FOREST))
    output = OutputFile(path, writer.info.bytes, writer.info.xxh3, len(row))
    return TaskResult((output,), details=msgspec.to_builtins(ForestFiles([path], len(row))))


def chain(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the links of a chain, in random order."""
    links = np.random.default_rng(7).permutation(np.stack([rows[1:], rows[:-1]], axis=1))
    return links.max(axis=1), links.min(axis=1)


def write_links(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write some of the links of a chain of `rows` rows in random order; this is a task function."""
    row, root = chain(np.random.default_rng(1).permutation(arguments["rows"]).astype(np.uint64))
    some = slice(arguments["file"], None, arguments["files"])
    return write_forest(Path(context.step_directory), arguments["file"], row[some], root[some])


def read_labels(directory: Path, labelled: Sequence[TaskResult], parts: Sequence[Part]) -> dict[int, int]:
    """Return the component of each row. Checks that each row is labelled once, in the part that holds it."""
    labels: dict[int, int] = {}
    runs = [run for result in labelled for run in result.details["runs"]]
    for number, part in enumerate(parts):
        context = TaskContext(str(directory), directory)
        for table in read_rows(runs, row_buckets(parts), PartRange(number, [part]), context):
            rows, components = table["row"].to_numpy(), table["component"].to_numpy()
            assert ((rows >= part.first_row) & (rows < part.last_row)).all()
            assert not set(rows.tolist()) & set(labels)
            assert len(np.unique(rows)) == len(rows)
            labels |= zip(rows.tolist(), components.tolist(), strict=True)
    return labels
