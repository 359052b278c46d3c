"""Creates partitioned datasets for tests of single stages: files and manifests as the stage before writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from datakit.engine.task import Step, StepInput
from datakit.storage import fingerprint, urls
from datakit.storage.ids import ids_from_arrow, partition_name
from datakit.storage.manifest import Manifest, Partition, Quarantine, data_path, totals_of
from datakit.storage.parquet import ShardWriter, columns_of, read_shard
from datakit.storage.selection.leaving_rows import DICTIONARY, SCHEMA

ATTRIBUTES = pa.schema(
    [
        ("id", pa.string()),
        ("reason", pa.string()),
        ("cluster_id", pa.string()),
        ("representative_id", pa.string()),
        ("representative_source", pa.string()),
        ("jaccard", pa.float64()),
    ]
)


def partition_of(high: np.ndarray, bits: int) -> np.ndarray:
    """The partition, int64 [N], of each id among `2**bits`."""
    if bits == 0:
        return np.zeros(len(high), np.int64)
    return (high >> np.uint64(64 - bits)).astype(np.int64)


def identity(text: str) -> str:
    """The id of a document."""
    return xxhash.xxh3_128_hexdigest(text.encode())


def documents(source: str, texts: Sequence[str], columns: dict[str, Any] | None = None) -> pa.Table:
    """A normalized table: one row per distinct text, sorted by id. columns: upstream columns, one value per text."""
    first = {text: index for index, text in reversed(list(enumerate(texts)))}
    rows = sorted((identity(text), text, index) for text, index in first.items())
    table = pa.table(
        {
            "id": pa.array([row[0] for row in rows], pa.string()),
            "text": pa.array([row[1] for row in rows], pa.large_string()),
            "source": pa.array([source] * len(rows), pa.string()),
            "source_id": pa.array([None] * len(rows), pa.string()),
        }
    )
    for name, values in (columns or {}).items():
        table = table.append_column(name, pa.array([values[row[2]] for row in rows]))
    return table.append_column("edited_id", pa.nulls(len(rows), pa.string()))


def dataset(
    directory: Path, stage: str, tables: dict[str, pa.Table], bits: int = 0, one: str | None = None
) -> StepInput:
    """Write `tables` (source -> rows sorted by id) in 2**bits partitions each, and a manifest. one: the only source."""
    partitions = []
    for source, table in tables.items():
        homes = partition_of(ids_from_arrow(table["id"])[0], bits)
        for index in range(1 << bits):
            name = partition_name(index, 1 << bits)
            path = data_path(source, name)
            part = table.filter(pa.array(homes == index))
            with ShardWriter(str(directory / path), table.schema) as writer:
                writer.write(part)
            size = sum(len(text.encode()) for text in part["text"].to_pylist()) if "text" in part.column_names else None
            ends = (part["id"][0].as_py(), part["id"][-1].as_py()) if len(part) else (None, None)
            info = writer.info
            partitions.append(Partition(path, source, info.rows, info.bytes, info.xxh3, size, None, *ends))
    mark = fingerprint.fingerprint(stage, 1, {"directory": directory.name}, [])
    schema = next(iter(tables.values())).schema
    manifest = Manifest(
        stage, "test", mark, mark, {}, [], columns_of(schema), partitions, totals_of(partitions), {}, Quarantine(0)
    )
    return StepInput(stage, one, str(directory), manifest)


def normalized(root: Path, source: str, texts: Sequence[str], bits: int = 0, columns: Any = None) -> StepInput:
    """One source as normalize writes it."""
    return dataset(root / source, "normalize", {source: documents(source, texts, columns)}, bits, one=source)


def attributes(root: Path, marks: dict[str, dict[str, str]], bits: dict[str, int] | int = 0) -> StepInput:
    """Dedup's output. marks: for each source, id -> reason."""
    tables = {}
    for source, reasons in marks.items():
        ids = sorted(reasons)
        columns = [pa.array(ids, pa.string()), pa.array([reasons[key] for key in ids], pa.string())]
        columns += [pa.nulls(len(ids), field.type) for field in list(ATTRIBUTES)[2:]]
        tables[source] = pa.table(columns, schema=ATTRIBUTES)
    inputs = [
        dataset(root, "dedup", {source: table}, bits[source] if isinstance(bits, dict) else bits)
        for source, table in tables.items()
    ]
    partitions = [partition for entry in inputs for partition in entry.manifest.partitions]
    manifest = inputs[0].manifest
    return StepInput(
        "dedup",
        None,
        str(root),
        Manifest(
            "dedup", "test", manifest.fingerprint, manifest.identity, {}, [], columns_of(ATTRIBUTES), partitions,
            totals_of(partitions), {}, Quarantine(0),
        ),
    )  # fmt: skip


def selection(
    root: Path, inputs: Sequence[StepInput], leaving: Mapping[str, Mapping[str, Sequence[str]]] | None = None
) -> StepInput:
    """Make the selection of normalized sources. leaving: for each source, id -> reasons."""
    partitions = []
    for entry in inputs:
        reasons = (leaving or {}).get(str(entry.source), {})
        for part in entry.manifest.partitions:
            ids = read_shard(urls.join(entry.directory, part.path), ["id"])["id"].to_pylist()
            rows = [{"id": name, "row": row, "reasons": list(reasons[name])}
                    for row, name in enumerate(ids) if name in reasons]  # fmt: skip
            with ShardWriter(str(root / part.path), SCHEMA, DICTIONARY) as writer:
                writer.write(pa.Table.from_pylist(rows, SCHEMA))
            info = writer.info
            partitions.append(Partition(part.path, part.source, info.rows, info.bytes, info.xxh3))
    return select_input(root, partitions, {str(entry.source): entry.manifest.totals.rows for entry in inputs})


def select_input(root: Path, partitions: list[Partition], documents: Mapping[str, int]) -> StepInput:
    """Make a finished select step with these partitions. documents: the number of normalized documents by source."""
    counts = {}
    for source, number in documents.items():
        left = sum(part.rows for part in partitions if part.source == source)
        counts[source] = {"records_in": number, "combinations": {"exact": left} if left else {}}
        counts[source]["records_out"] = number - left
    mark = fingerprint.fingerprint("select", 1, {"directory": root.name}, [])
    manifest = Manifest(
        "select", "test", mark, mark, {}, [], columns_of(SCHEMA), partitions, totals_of(partitions), {},
        Quarantine(0), {"drop": ["exact"], "sources": counts},
    )  # fmt: skip
    return StepInput("select", None, str(root), manifest)


def step(directory: Path, stage: str, inputs: Sequence[StepInput], **parameters: Any) -> Step:
    """A step of a test recipe."""
    mark = fingerprint.fingerprint(stage, 1, parameters, [entry.manifest.identity for entry in inputs])
    return Step(stage, "test", str(directory), mark, parameters, tuple(inputs))


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, by relative path."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def words(seed: int, count: int, length: int = 20) -> list[str]:
    """Distinct small texts of made-up words."""
    generator = np.random.default_rng(seed)
    return [
        f"{seed}-{row} " + " ".join(f"w{value}" for value in generator.integers(0, 500, length)) for row in range(count)
    ]
