"""Normalize: raw files -> standard Parquet, sorted by the hash of the text, exact duplicates gone. One step a source.

    route   one task a slice of the input: read in columns, apply the text rules, hash, send to the id's bucket
    sort    one task a partition: sort by id, keep the first of equal texts, write

Between them, with all slices known: one schema for all columns, and the number of partitions from the bytes of text.
Partition i of 2**k holds the ids whose top k bits are i, so partitions of two sources nest and every later join is a
merge. Every record that came in is written, or counted under the reason for which it left, or the step fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datakit.engine.exchange.exchange import merged
from datakit.engine.task import (
    BATCH_HANG_SECONDS,
    Output,
    Phase,
    Plan,
    Preload,
    Step,
    Task,
    TaskContext,
    TaskResult,
    tolerance_of,
)
from datakit.errors import ColumnError, DatakitError, EmptyStageError, suggestion
from datakit.normalize import route, sort
from datakit.normalize.config import Config
from datakit.normalize.predicate import Predicate
from datakit.normalize.readers.slices import Piece, cut_slices
from datakit.normalize.record_counts import IN, LEAVING, PREFIX, conservation
from datakit.normalize.schema_union import shown, storable, unite
from datakit.storage.fingerprint import config_of, spelled_out
from datakit.storage.manifest import Partition

__all__ = ["FORMAT_VERSION", "NAME", "Config", "plan", "route_slice", "sort_partition"]

NAME = "normalize"
FORMAT_VERSION = 1
OURS = ("id", "text", "source", "source_id")
RENAMED = "upstream_"  # an upstream column under one of our names is kept with this prefix
MOST_BITS = 20
PRELOADS = (
    Preload(__name__),
    Preload("datakit.normalize.warm_kernels", "datakit.normalize.warm_kernels:warm"),
)


# --- plan


def plan(step: Step) -> Plan:
    """`step.parameters["source"]` names the source, `step.operations["base"]` says where its files lie.

    `step.operations["listed"]`, where they are read in place: path -> (size, modification time in ns, xxh3-128).
    """
    config = config_of(step.parameters, Config)
    base, upstream = step.operations["base"], step.inputs[0].manifest
    slices = cut_slices(base, [(file.path, file.bytes) for file in upstream.partitions], config)
    bucket_bits = _bucket_bits(slices, config)
    shared = {"base": base, "config": spelled_out(config), "buckets": 1 << bucket_bits}
    listed = step.operations.get("listed", {})
    tasks = tuple(_route_task(number, pieces, listed) for number, pieces in enumerate(slices))
    routed = yield Phase(
        route.PHASE,
        tasks,
        shared,
        PRELOADS,
        memory_per_input_byte=0.0,
        tolerance=tolerance_of(step),
        hang_seconds=BATCH_HANG_SECONDS,
    )
    union = _united(routed, config)
    text_bytes = sum(result.details["text_bytes"] for result in routed)
    _check_not_empty(step, config, routed)
    schema, columns = output_schema(union, config)
    bits = partition_bits(text_bytes, config.partition_bytes)
    runs = [run for result in routed for run in result.details["runs"]]
    runs = yield from merged(step, route.PHASE, runs, readers=1 << bits)
    sizes = sum(output.bytes for result in routed for output in result.outputs) >> bits
    sorting = {
        "runs": runs,
        "bits": bits,
        "bucket_bits": bucket_bits,
        "source": step.parameters["source"],
        "schema": schema.serialize().to_pybytes(),
        "columns": columns,
    }
    tasks = tuple(
        Task(f"{i:05d}", f"{__name__}:sort_partition", {"partition": i}, input_bytes=sizes) for i in range(1 << bits)
    )
    sorted_ = yield Phase(sort.PHASE, tasks, sorting, PRELOADS, memory_bytes=512 << 20, memory_per_input_byte=4.0)
    _check_conservation([*routed, *sorted_])
    return Output(
        [_partition(step, result) for result in sorted_], schema, details={"duplicates": _duplicate_files(sorted_)}
    )


def _route_task(number: int, pieces: Sequence[Piece], listed: Mapping[str, tuple[int, int, str]]) -> Task:
    """Its arguments hold what was listed of its own files alone: a file that was touched makes no other task anew."""
    key = f"{number:05d}"
    mine = {piece.path: listed[piece.path] for piece in pieces if piece.path in listed}
    arguments = {"key": key, "pieces": [piece.plain() for piece in pieces], "listed": mine}
    return Task(key, f"{__name__}:route_slice", arguments, input_bytes=sum(piece.weight for piece in pieces))


def _bucket_bits(slices: Sequence[Sequence[Piece]], config: Config) -> int:
    """Buckets for the partitions that will be wanted, by the bytes to be read.

    Where there is more text than expected, a partition reads a bucket and leaves what is not its own.
    """
    expected = sum(piece.weight for pieces in slices for piece in pieces)
    sizes = (expected, min(expected, 1 << 30))  # just above 1 GiB partitions are fewer than just below
    return max(partition_bits(size, config.partition_bytes) for size in sizes)


def partition_bits(text_bytes: int, partition_bytes: int | None = None) -> int:
    """k: the source has 2**k partitions, the fewest that stay below the size for this much text.

    >>> [partition_bits(size) for size in (0, 32 << 20, 1 << 30, (1 << 30) + 1, (1 << 40) + 1)]
    [0, 1, 6, 4, 11]
    """
    if partition_bytes is None:
        partition_bytes = 32 << 20 if text_bytes <= 1 << 30 else 128 << 20 if text_bytes <= 1 << 40 else 1 << 30
    bits = 0
    while text_bytes >= partition_bytes << bits and bits < MOST_BITS:
        bits += 1
    return bits


def _united(routed: Sequence[TaskResult], config: Config) -> pa.Schema:
    """All upstream columns but the text. Raises ColumnError where files, or the configuration, disagree with them."""
    schemas = [(file, _schema(data)) for result in routed for file, data in result.details["schemas"]]
    union = unite(schemas)
    for name in Predicate(config.where).columns if config.where else ():
        if name not in union.names and name != config.text and schemas:
            near = suggestion(name, [*union.names, config.text])
            raise ColumnError(f"where: no record has a column {name!r}; {near}")
    if config.id not in ("id", "", *union.names) and schemas:
        raise ColumnError(f"no record has a column {config.id!r} for its id; {suggestion(config.id, union.names)}")
    return union


def _schema(digits: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.BufferReader(bytes.fromhex(digits)))


def output_schema(union: pa.Schema, config: Config) -> tuple[pa.Schema, list[dict[str, Any]]]:
    """The columns that are written, and from which upstream column each comes.

    Upstream columns that bear one of our names are kept under another, except in what was normalized before (it has a
    `source_id`): there `id` and `source` are our own, and `source_id` is the upstream id that must not be lost.
    """
    again = "source_id" in union.names and config.id == "id"
    id_column = "source_id" if again else config.id
    taken = set(union.names) | set(OURS)
    fields = [pa.field("id", pa.string(), False), pa.field("text", pa.large_string(), False)]
    fields += [pa.field("source", pa.string(), False), pa.field("source_id", pa.string())]
    columns: list[dict[str, Any]] = [{"name": name, "upstream": None} for name in OURS]
    columns[-1]["upstream"] = id_column if id_column in union.names else None
    for field in union:
        if field.name == id_column or (again and field.name in ("id", "source")):
            continue
        name = field.name
        while name in OURS or (name != field.name and name in taken):
            name = RENAMED + name
        taken.add(name)
        fields.append(pa.field(name, storable(field.type)))
        columns.append({"name": name, "upstream": field.name})
    schema = pa.schema(fields)
    _check_writable(schema)
    return schema, columns


def _check_writable(schema: pa.Schema) -> None:
    for field in schema:
        try:
            pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise ColumnError(
                f"column {shown(field.name)} has type {field.type}, which Parquet does not hold; leave it out (drop = "
                f"[{shown(field.name)}] under [normalize]), or make another of it with a transform"
            ) from error


def _check_not_empty(step: Step, config: Config, routed: Sequence[TaskResult]) -> None:
    counters = _counters(routed)
    gone = {name.removeprefix(PREFIX): counters[name] for name in LEAVING if counters[name]}
    left = counters[IN] + counters["normalize/transform_added"] - sum(gone.values())
    if left == 0:
        why = ", ".join(f"{count} {name}" for name, count in gone.items()) or "there was none"
        raise EmptyStageError(
            f"source {step.parameters['source']!r}: no document is left of {counters[IN]} records ({why}); is "
            f"{config.text!r} the right text column? datakit inspect shows what the source holds"
            f"{_first_left_out(routed)}"
        )


def _first_left_out(routed: Sequence[TaskResult]) -> str:
    record = next((record for result in routed for record in result.quarantined), None)
    return "" if record is None else f"; first of the quarantined: {record.file}:{record.position}: {record.reason}"


def _counters(results: Sequence[TaskResult]) -> Counter[str]:
    counters: Counter[str] = Counter()
    for result in results:
        counters.update(result.counters)
    return counters


def _check_conservation(results: Sequence[TaskResult]) -> None:
    broken = conservation(_counters(results))
    if broken:
        raise DatakitError(f"normalize lost count of its records, which is a defect of datakit: {broken}")


def _partition(step: Step, result: TaskResult) -> Partition:
    shard, details = result.outputs[0], result.details
    return Partition(
        shard.path,
        step.parameters["source"],
        rows=shard.rows,
        bytes=shard.bytes,
        xxh3=shard.xxh3,
        text_bytes=details["text_bytes"],
        first_id=details["first_id"],
        last_id=details["last_id"],
    )


def _duplicate_files(results: Sequence[TaskResult]) -> list[dict[str, Any]]:
    return [{"path": file.path, "rows": file.rows} for result in results for file in result.outputs[1:]]


# --- tasks


def route_slice(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """A slice of the input into the exchange."""
    return route.route_slice(arguments, shared, context)


def sort_partition(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """A partition out of the exchange into its final file."""
    return sort.sort_partition(arguments, shared, context)
