"""Writes annotate steps whose tables hold given columns, with the normalize steps that they describe."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from datakit.engine.task import StepInput
from datakit.storage import urls
from datakit.storage.manifest import InputReference, Manifest, Partition, Quarantine, totals_of, write_manifest
from datakit.storage.parquet import ShardWriter, columns_of, read_shard
from tests.support.partitions import identity, normalized


def write_step(root: Path, source: str, tables: dict[str, dict[str, pa.Array]], texts: list[str], bits: int = 0) -> str:
    """Write an annotate step, and return its directory. tables: columns by annotator, with one value for each text."""
    above = normalized(root / "sources", source, texts, bits)
    write_manifest(above.manifest, above.directory)
    place = root / "sources" / source / "annotate-0123456789ab"
    partitions = [
        part for name, columns in tables.items() for part in _write_tables(place, above, name, columns, texts)
    ]
    inputs = [InputReference("normalize", urls.relative(f"{above.directory}/manifest.json", str(place)),
                             above.manifest.identity, "")]  # fmt: skip
    counters = {"annotate/documents": above.manifest.totals.rows}
    manifest = Manifest(
        "annotate", source, "0" * 32, "0" * 32, {}, inputs, columns_of(pa.schema([("id", pa.string())])),
        sorted(partitions, key=lambda one: one.path), totals_of(partitions), counters, Quarantine(0),
    )  # fmt: skip
    write_manifest(manifest, str(place))
    return str(place)


def _write_tables(
    place: Path, above: StepInput, annotator: str, columns: dict[str, pa.Array], texts: list[str]
) -> list[Partition]:
    rows = {identity(text): number for number, text in enumerate(texts)}
    partitions = []
    for part in above.manifest.partitions:
        ids = read_shard(f"{above.directory}/{part.path}", ["id"])["id"].to_pylist()
        places = pa.array([rows[one] for one in ids], pa.int64())
        table = pa.table(
            {"id": pa.array(ids, pa.string()), **{name: one.take(places) for name, one in columns.items()}}
        )
        path = f"data/{part.source}/{annotator}/{urls.name(part.path)}"
        with ShardWriter(str(place / path), table.schema) as writer:
            writer.write(table)
        partitions.append(Partition(path, part.source, writer.info.rows, writer.info.bytes, writer.info.xxh3))
    return partitions
