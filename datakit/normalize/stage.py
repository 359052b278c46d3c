"""Stage `normalize`: plans the routing and sorting of a source, decides its number of partitions and its output
columns, and reports an error if a source yields no documents.

    route   one task per slice of the input: read, apply the text rules, hash, write to the bucket for the id
    sort    one task per partition: sort by id, keep the first of equal texts, write

The result consists of Parquet files of documents, sorted by the hash of the text, without exact duplicates. Between the
two phases, when the columns and the amount of text of all slices are known, the plan unites the columns and derives the
number of partitions. Partition i of 2**k holds the ids whose top k bits are i. Therefore the partitions of two sources
nest, and every later join is a merge. Every record read is either written or counted under the reason for its removal;
otherwise the step fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from datakit.engine.exchange.exchange import merged
from datakit.engine.task import BATCH_HANG_SECONDS, Output, Phase, Plan, Preload, Step, Task, TaskResult, tolerance_of
from datakit.errors import ColumnError, DatakitError, EmptyStageError, suggestion
from datakit.normalize import route, sort
from datakit.normalize.config import Config
from datakit.normalize.phase_data import (
    OutputColumn,
    RouteArguments,
    RouteDetails,
    RouteShared,
    SortDetails,
    SortShared,
    to_plain,
)
from datakit.normalize.predicate import Predicate
from datakit.normalize.readers.slices import FileRange, cut_slices
from datakit.normalize.record_counts import ADDED, IN, PREFIX, REMOVED, conservation
from datakit.normalize.schema_union import shown, storable, unite
from datakit.storage.fingerprint import config_of, spelled_out
from datakit.storage.manifest import Partition

NAME = "normalize"
FORMAT_VERSION = 1
OURS = ("id", "text", "source", "source_id")
RENAMED = "upstream_"  # prefix for the name of an upstream column that has one of our names
MOST_BITS = 20  # a million partitions; at 1 GiB each, they would hold more text than exists
PRELOADS = (Preload(__name__), Preload("datakit.normalize.warm_kernels", "datakit.normalize.warm_kernels:warm"))


def plan(step: Step) -> Plan:
    """Plan the step.

    step.parameters["source"]: the name of the source.
    step.operations["base"]: the base URL of the source's files.
    step.operations["listed"]: the files that are read in place, path -> (size, modification time in ns, xxh3-128).
    """
    config, files = config_of(step.parameters, Config), step.inputs[0].manifest.partitions
    slices = cut_slices(step.operations["base"], [(file.path, file.bytes) for file in files], config)
    bucket_bits = _bucket_bits(slices, config)
    routed = yield _route_phase(step, config, slices, 1 << bucket_bits)
    details = [msgspec.convert(result.details, RouteDetails) for result in routed]
    union = _united(details, config)
    _check_not_empty(step, config, routed)
    schema, columns = output_schema(union, config)
    bits = partition_bits(sum(entry.text_bytes for entry in details), config.partition_bytes)
    runs = [run for entry in details for run in entry.runs]
    runs = yield from merged(step, route.PHASE, runs, readers=1 << bits)
    source, serialized = step.parameters["source"], schema.serialize().to_pybytes()
    shared = SortShared(runs, bits, bucket_bits, source, serialized, columns)
    sorted_ = yield _sort_phase(shared, sum(output.bytes for result in routed for output in result.outputs))
    _check_conservation([*routed, *sorted_])
    partitions = [_partition(source, result) for result in sorted_]
    duplicates = [{"path": file.path, "rows": file.rows} for result in sorted_ for file in result.outputs[1:]]
    return Output(partitions, schema, details={"duplicates": duplicates})


def _route_phase(step: Step, config: Config, slices: Sequence[Sequence[FileRange]], buckets: int) -> Phase:
    listed = step.operations.get("listed", {})
    return Phase(
        route.PHASE,
        tuple(_route_task(number, ranges, listed) for number, ranges in enumerate(slices)),
        to_plain(RouteShared(step.operations["base"], spelled_out(config), buckets)),
        PRELOADS,
        memory_per_input_byte=0.0,
        tolerance=tolerance_of(step),
        hang_seconds=BATCH_HANG_SECONDS,
    )


def _route_task(number: int, ranges: Sequence[FileRange], listed: Mapping[str, tuple[int, int, str]]) -> Task:
    """Create a task whose arguments describe only the files it reads, so a touched file invalidates no other task."""
    key = f"{number:05d}"
    own = {part.path: listed[part.path] for part in ranges if part.path in listed}
    arguments = to_plain(RouteArguments(key, list(ranges), own))
    return Task(key, "datakit.normalize.route:route_slice", arguments, input_bytes=sum(part.weight for part in ranges))


def _sort_phase(shared: SortShared, exchange_bytes: int) -> Phase:
    size, function = exchange_bytes >> shared.bits, "datakit.normalize.sort:sort_partition"
    tasks = tuple(
        Task(f"{number:05d}", function, {"partition": number}, input_bytes=size) for number in range(1 << shared.bits)
    )
    return Phase(sort.PHASE, tasks, to_plain(shared), PRELOADS, memory_bytes=512 << 20, memory_per_input_byte=4.0)


def _bucket_bits(slices: Sequence[Sequence[FileRange]], config: Config) -> int:
    """Return how many of an id's top bits select its bucket: an estimate of how many will select its partition. The
    estimate is based on the bytes to be read. If there turns out to be more text, partitions share buckets.
    """
    expected = sum(part.weight for ranges in slices for part in ranges)
    sizes = (expected, min(expected, 1 << 30))  # a little over 1 GiB makes fewer partitions than 1 GiB does
    return max(partition_bits(size, config.partition_bytes) for size in sizes)


def partition_bits(text_bytes: int, partition_bytes: int | None = None) -> int:
    """Return the smallest k (at most MOST_BITS) for which the mean text size of 2**k partitions is below
    `partition_bytes`; if this is None, its value depends on `text_bytes`.

    >>> [partition_bits(size) for size in (0, 32 << 20, 1 << 30, (1 << 30) + 1, (1 << 40) + 1)]
    [0, 1, 6, 4, 11]
    """
    if partition_bytes is None:
        partition_bytes = 32 << 20 if text_bytes <= 1 << 30 else 128 << 20 if text_bytes <= 1 << 40 else 1 << 30
    bits = 0
    while text_bytes >= partition_bytes << bits and bits < MOST_BITS:
        bits += 1
    return bits


def _united(details: Sequence[RouteDetails], config: Config) -> pa.Schema:
    """Unite all upstream columns but the text. Raises ColumnError if two conflict or a configured column is missing."""
    encoded = [(file, pa.BufferReader(bytes.fromhex(digits))) for entry in details for file, digits in entry.schemas]
    schemas = [(file, pa.ipc.read_schema(data)) for file, data in encoded]
    union = unite(schemas)
    for name in Predicate(config.where).columns if config.where else ():
        if name not in union.names and name != config.text and schemas:
            near = suggestion(name, [*union.names, config.text])
            raise ColumnError(f"where: no record has the column {name!r}; {near}")
    if config.id not in ("id", "", *union.names) and schemas:
        raise ColumnError(f"no record has the id column {config.id!r}; {suggestion(config.id, union.names)}")
    return union


def output_schema(union: pa.Schema, config: Config) -> tuple[pa.Schema, list[OutputColumn]]:
    """Return the output's schema, and the upstream column that each output column comes from. Raises ColumnError.

    An upstream column with one of our names is renamed, except in a source that was already normalized. Such a source
    has a column `source_id`, which holds the upstream id and is preserved; its `id` and `source` are computed anew.
    """
    again = "source_id" in union.names and config.id == "id"
    id_column = "source_id" if again else config.id
    fields = [pa.field("id", pa.string(), False), pa.field("text", pa.large_string(), False)]
    fields += [pa.field("source", pa.string(), False), pa.field("source_id", pa.string())]
    columns = [OutputColumn(name) for name in OURS[:-1]]
    columns.append(OutputColumn("source_id", id_column if id_column in union.names else None))
    taken = {*union.names, *OURS}
    for field in union:
        if field.name == id_column or (again and field.name in ("id", "source")):
            continue
        name = field.name
        while name in OURS or (name != field.name and name in taken):
            name = RENAMED + name
        taken.add(name)
        fields.append(pa.field(name, storable(field.type)))
        columns.append(OutputColumn(name, field.name))
    schema = pa.schema(fields)
    _check_writable(schema)
    return schema, columns


def _check_writable(schema: pa.Schema) -> None:
    for field in schema:
        try:
            pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise ColumnError(
                f"column {shown(field.name)} has type {field.type}, which Parquet does not support; leave it out "
                f"(drop = [{shown(field.name)}] under [normalize]), or convert it with a transform"
            ) from error


def _check_not_empty(step: Step, config: Config, routed: Sequence[TaskResult]) -> None:
    counters = _counters(routed)
    removed = {name.removeprefix(PREFIX): counters[name] for name in REMOVED if counters[name]}
    if counters[IN] + counters[ADDED] == sum(removed.values()):
        reasons = ", ".join(f"{count} {name}" for name, count in removed.items()) or "the source is empty"
        records = [
            f"{record.file}:{record.position}: {record.reason}" for task in routed for record in task.quarantined
        ]
        raise EmptyStageError(
            f"source {step.parameters['source']!r}: none of its {counters[IN]} records became a document ({reasons}); "
            f"is {config.text!r} the right text column? datakit inspect shows what the source contains"
            + (f"; first quarantined record: {records[0]}" if records else "")
        )


def _counters(results: Sequence[TaskResult]) -> Counter[str]:
    return sum((Counter(result.counters) for result in results), Counter())


def _check_conservation(results: Sequence[TaskResult]) -> None:
    broken = conservation(_counters(results))
    if broken:
        raise DatakitError(f"normalize lost track of records, which is a bug in datakit: {broken}")


def _partition(source: str, result: TaskResult) -> Partition:
    shard, details = result.outputs[0], msgspec.convert(result.details, SortDetails)
    size, first, last = details.text_bytes, details.first_id, details.last_id
    return Partition(
        shard.path, source, shard.rows, shard.bytes, shard.xxh3, text_bytes=size, first_id=first, last_id=last
    )
