"""Writes normalized sources made from texts, and runs the stages of dedup on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
import zstandard

from datakit.dedup import stage
from datakit.dedup.minhash import signatures_stage
from datakit.engine.task import Output, Plan, Step, StepInput, TaskResult
from datakit.storage.fingerprint import fingerprint, spelled_out
from datakit.storage.ids import partition_name
from datakit.storage.manifest import Manifest, Partition, Quarantine, data_path, totals_of
from datakit.storage.parquet import ShardWriter, columns_of, read_shard
from tests.support.engine.inline import run_plan_inline
from tests.support.partitions import partition_of


def id_of(text: str) -> str:
    """Return a document's id."""
    return xxhash.xxh3_128_hexdigest(text.encode())


def read_texts(path: Path) -> dict[str, str]:
    """Return the texts of a docs.jsonl.zst by name."""
    with open(path, "rb") as file:
        lines = zstandard.ZstdDecompressor().stream_reader(file).read().decode().splitlines()
    return {entry["id"]: entry["text"] for entry in map(json.loads, lines)}


def write_source(
    root: Path, name: str, texts: Sequence[str], bits: int = 0, scores: Sequence[float | None] | None = None
) -> StepInput:
    """Write a normalized source of `2**bits` partitions; repeated texts are written once."""
    by_id = {id_of(text): (text, scores[i] if scores else None) for i, text in enumerate(texts)}
    ids = sorted(by_id)
    high = np.array([int(one[:16], 16) for one in ids], np.uint64)
    numbers = partition_of(high, bits)
    fields = [pa.field("id", pa.string()), pa.field("text", pa.large_string()), pa.field("source", pa.string())]
    schema = pa.schema([*fields, *([pa.field("score", pa.float64())] if scores else [])])
    directory = root / "sources" / name / "normalize"
    partitions = []
    for index in range(1 << bits):
        mine = [ids[i] for i in np.flatnonzero(numbers == index)]
        columns = [mine, [by_id[one][0] for one in mine], [name] * len(mine), [by_id[one][1] for one in mine]]
        path = data_path(name, partition_name(index, 1 << bits))
        with ShardWriter(str(directory / path), schema) as writer:
            writer.write(pa.table(columns[: len(schema)], schema=schema))
        text_bytes = sum(len(by_id[one][0].encode()) for one in mine)
        info = writer.info
        partitions.append(Partition(path, name, info.rows, info.bytes, info.xxh3, text_bytes=text_bytes))
    mark = fingerprint("normalize", 1, {"ids": ids}, [])
    manifest = _manifest("normalize", name, mark, Output(partitions, schema))
    return StepInput("normalize", name, str(directory), manifest)


def _manifest(
    kind: str, dataset: str, mark: str, output: Output, results: Sequence[TaskResult] = (), **parameters: Any
) -> Manifest:
    counters = dict(output.counters)
    for result in results:
        for name, count in result.counters.items():
            counters[name] = counters.get(name, 0) + count
    return Manifest(
        stage=kind,
        dataset=dataset,
        fingerprint=mark,
        identity=mark,
        parameters=parameters,
        inputs=[],
        schema=columns_of(output.schema),
        partitions=output.partitions,
        totals=totals_of(output.partitions),
        counters=counters,
        quarantine=Quarantine(0),
        details=output.details,
    )


@dataclass(frozen=True)
class Deduplicated:
    """The result of stage `dedup`."""

    directory: str
    inputs: tuple[StepInput, ...]
    manifest: Manifest
    results: list[TaskResult]

    def attributes(self) -> list[dict[str, Any]]:
        """Return all attribute rows in order, with their sources."""
        return [
            {"source": partition.source, **row}
            for partition in self.manifest.partitions
            for row in read_shard(f"{self.directory}/{partition.path}").to_pylist()
        ]


def sign(source: StepInput, config: signatures_stage.SignatureConfig) -> StepInput:
    """Run stage `signatures` on a source."""
    parameters = spelled_out(config)
    mark = fingerprint("signatures", signatures_stage.FORMAT_VERSION, parameters, [])
    directory = str(Path(source.directory).parent / f"signatures-{mark}")
    step = Step("signatures", source.source or "", directory, mark, parameters, (source,))
    output, results = run_plan_inline(signatures_stage.plan(step), directory)
    manifest = _manifest("signatures", source.source or "", mark, output, results, **parameters)
    return StepInput("signatures", source.source, directory, manifest)


def dedup_step(directory: Path, sources: Sequence[StepInput], config: stage.Config) -> Step:
    """Sign the sources and return the step of stage `dedup`."""
    signed = [sign(source, config.signature) for source in sources]
    inputs = tuple(entry for pair in zip(sources, signed, strict=True) for entry in pair)
    return Step("dedup", "test", str(directory), "1" * 32, spelled_out(config), inputs)


def run_step(step: Step, plan: Plan | None = None) -> Deduplicated:
    """Run stage `dedup`, or a plan made of it, in this process."""
    output, results = run_plan_inline(plan or stage.plan(step), step.directory)
    manifest = _manifest("dedup", step.dataset, step.fingerprint, output, results, **step.parameters)
    return Deduplicated(step.directory, step.inputs, manifest, results)


def deduplicate(root: Path, sources: Sequence[StepInput], config: stage.Config | None = None) -> Deduplicated:
    """Run both stages on sources."""
    return run_step(dedup_step(root / "dedup", sources, config or stage.Config()))
