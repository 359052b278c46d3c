"""Stage `signatures`: defines the parameters of signatures and their limits, and writes each partition's band keys to a
Parquet file. A source's signatures depend only on that source and on `SignatureConfig`, so no signatures of other
sources are recomputed when a source is added. If dedup's threshold changes, only clustered documents have to be read
again. Columns:

    id        string             the document's id; rows are in the order of the normalized file
    shingles  uint32             number of shingles (windows of `ngram` words), including repeats
    skipped   string, nullable   why the document is skipped: "too_short", "saturated" or "quarantined"
    band_00 ... uint64           the band keys, 0 if skipped; documents with equal keys in a band are candidates

Each band has its own column instead of an entry in a list, so there are no repetition levels to decode, and any tool
can join on a single column. The kernel signs 300 to 500 MB of text per CPU-second; reading zstd-compressed Parquet
takes about as long. Memory: one row group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.dedup.minhash.s_curve import s_curve
from datakit.engine.quarantine import MAX_QUARANTINED, check_limit
from datakit.engine.task import (
    BATCH_HANG_SECONDS,
    Output,
    OutputFile,
    Phase,
    Plan,
    Preload,
    QuarantinedRecord,
    Step,
    Task,
    TaskContext,
    TaskResult,
    tolerance_of,
    without_tolerances,
)
from datakit.storage import urls
from datakit.storage.fingerprint import config_of
from datakit.storage.ids import OrderedIds
from datakit.storage.manifest import Partition, data_path
from datakit.storage.parquet import ShardWriter, open_shard, read_group
from datakit.text.unicode_words import UNICODE_VERSION
from datakit.toml_config import key

NAME = "signatures"
FORMAT_VERSION = 2
PRELOADS = (Preload("datakit.dedup.warm_kernels", "datakit.dedup.warm_kernels:warm", kernels=True),)
LIMITS = {"bands": (1, 100), "rows": (1, 100), "ngram": (1, 64), "seed": (0, 2**63 - 1), "min_shingles": (1, 1000)}


@dataclass(frozen=True)
class SignatureConfig:
    """Parameters of signatures. Signatures are comparable only if they were made with equal parameters; the values of
    `max_quarantined` and `quarantine` may differ.
    """

    bands: Annotated[int, key("The number of bands; two documents that agree in a band are candidates.", 20)] = 14
    rows: Annotated[int, key("The number of MinHash values in a band.", 5)] = 8
    ngram: Annotated[int, key("The number of words in a shingle.", 3)] = 5
    seed: Annotated[int, key("The seed of the hash functions.", 7)] = 42
    min_shingles: Annotated[
        int,
        key("Documents with fewer distinct shingles are never fuzzy duplicates, as short texts all look alike.", 10),
    ] = 5
    max_quarantined: Annotated[int | float, MAX_QUARANTINED] = field(default=0, kw_only=True)
    quarantine: Annotated[
        tuple[str, ...],
        key(
            'Documents, as "data/source/partition:row", that may be left out in addition to `max_quarantined`.',
            ["data/novels/part-00003.parquet:17"],
        ),
    ] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        for name, (low, high) in LIMITS.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be from {low} to {high}")
        check_limit(self.max_quarantined)


def schema(bands: int) -> pa.Schema:
    """Return the schema of a signature file."""
    first = [pa.field("id", pa.string(), nullable=False), pa.field("shingles", pa.uint32(), nullable=False)]
    keys = [pa.field(name, pa.uint64(), nullable=False) for name in key_names(bands)]
    return pa.schema([*first, pa.field("skipped", pa.string()), *keys])


def key_names(bands: int) -> list[str]:
    """Return the names of the columns that hold the band keys."""
    return [f"band_{band:02d}" for band in range(bands)]


def plan(step: Step) -> Plan:
    """Plan one task per partition, which writes the partition's signatures."""
    config = config_of(step.parameters, SignatureConfig)
    (source,) = step.inputs_of("normalize")
    here = urls.relative(source.directory, step.directory)
    tasks = tuple(
        Task(
            key=f"{number:05d}",
            function="datakit.dedup.minhash.signatures_stage:sign_partition",
            arguments={
                "documents": f"{here}/{partition.path}",
                "path": data_path(partition.source, urls.name(partition.path)),
            },
            input_bytes=partition.text_bytes or partition.bytes,
        )
        for number, partition in enumerate(source.manifest.partitions)
    )
    results = yield Phase(
        "sign",
        tasks,
        {"config": without_tolerances(config)},
        PRELOADS,
        memory_bytes=512 << 20,
        memory_per_input_byte=2.0,
        hang_seconds=BATCH_HANG_SECONDS,
        tolerance=tolerance_of(step),
    )
    files = [result.outputs[0] for result in results]
    partitions = [
        Partition(
            file.path, part.source, file.rows, file.bytes, file.xxh3, first_id=part.first_id, last_id=part.last_id
        )
        for file, part in zip(files, source.manifest.partitions, strict=True)
    ]
    details = {"unicode": UNICODE_VERSION, "s_curve": s_curve(config.bands, config.rows)}
    return Output(partitions, schema(config.bands), details=details)


def sign_partition(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the signatures of one normalized file. Raises CorruptError if the file's ids are not strictly ascending."""
    from datakit.dedup.minhash.signatures import REASONS, sign  # imported here, so that planning need not load numba

    config = msgspec.convert(shared["config"], SignatureConfig)
    url = urls.join(context.step_directory, arguments["documents"])
    rows = text_bytes = windows = 0
    left_out: list[QuarantinedRecord] = []
    reasons = np.zeros(len(REASONS), np.int64)
    target = urls.join(context.step_directory, arguments["path"])
    with ShardWriter(target, schema(config.bands), dictionary=["skipped"]) as writer:
        for documents in _row_groups(url, arguments["path"], context):
            texts, quarantined = _guarded(documents["text"], rows, arguments["path"], shared["config"], context)
            left_out += quarantined
            signed = sign(texts, **shared["config"])
            signed.reason[[record.position - rows for record in quarantined]] = REASONS.index("quarantined")
            skipped = pa.array(REASONS, pa.string()).take(pa.array(signed.reason))
            columns = [documents["id"].combine_chunks(), pa.array(signed.windows), skipped, *map(pa.array, signed.keys)]
            writer.write(pa.Table.from_arrays(columns, schema=schema(config.bands)))
            rows += documents.num_rows
            text_bytes += documents["text"].nbytes
            windows += int(signed.windows.sum(dtype=np.int64))
            reasons += np.bincount(signed.reason, minlength=len(REASONS))
            context.report(rows, text_bytes)
            context.release()
    output = OutputFile(arguments["path"], writer.info.bytes, writer.info.xxh3, rows)
    counters = {"signatures/documents": rows, "signatures/shingles": windows}
    counters |= {f"signatures/{name}": int(count) for name, count in zip(REASONS, reasons, strict=True) if name}
    return TaskResult((output,), counters, {}, tuple(left_out), rows, text_bytes)


def _guarded(
    texts: pa.ChunkedArray, first: int, name: str, rules: dict[str, Any], context: TaskContext
) -> tuple[pa.ChunkedArray, list[QuarantinedRecord]]:
    """Return the texts of the row group that starts at row `first`, with "" in place of each quarantined text, and the
    quarantined records.
    """
    from datakit.dedup.minhash.signatures import sign

    positions = range(first, first + len(texts))
    kept, left_out = context.records(name, positions, lambda row: sign(texts.slice(row, 1), **rules))
    if kept is None:
        return texts, []
    return pc.call_function("if_else", [pa.array(kept), texts, pa.scalar("", texts.type)]), left_out


def _row_groups(url: str, name: str, context: TaskContext) -> Iterator[pa.Table]:
    """Yield the ids and texts of a normalized file, one row group at a time, and check that the ids ascend."""
    ids = OrderedIds(url)
    with open_shard(url) as shard:
        row = 0
        for group in range(shard.metadata.num_row_groups):
            context.hold(name, row, shard.metadata.row_group(group).num_rows)
            table = read_group(shard, group, url, ["id", "text"])
            row += table.num_rows
            if table.num_rows:
                ids.parse(table["id"])
            yield table
