"""Stage `normalize`: plans the routing and sorting of a source, decides its number of partitions and its output
columns, and reports an error if the source yields no documents.

    limit   if the source has a limit: count the documents of the first slices, to find where it ends (limit.py)
    route   one task per slice of the input: read, apply the text rules, hash, write to the bucket for the id
    sort    one task per partition: sort by id, keep the first of equal texts, write

The result consists of Parquet files of documents, sorted by the hash of the text, without exact duplicates. Between the
two phases, when the columns of all slices and the total size of their values are known, the plan forms the union of the
columns and derives the number of partitions. Partition i of 2**k holds the ids whose top k bits are i. Therefore a
partition of one source either contains whole partitions of another or lies within one of them, and every later join is
a merge. Every record read is either written or counted under the reason for its removal; otherwise the step fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

import msgspec
import pyarrow as pa

from datakit.engine.counts import added
from datakit.engine.exchange.exchange import merged, run_sizes
from datakit.engine.task import BATCH_HANG_SECONDS, Output, Phase, Plan, Preload, Step, Task, TaskResult, tolerance_of
from datakit.engine.user_modules import CODE_FOLDER, beside
from datakit.errors import ColumnError, DatakitError, EmptyStageError, counted, suggestion
from datakit.normalize import formats, limit, origins, route, sort
from datakit.normalize.archives.index import content_starts, only_archives, prepared
from datakit.normalize.columns.column_choice import check_wanted
from datakit.normalize.columns.conflicts import settled_values
from datakit.normalize.columns.number_types import Path
from datakit.normalize.columns.output_columns import output_schema
from datakit.normalize.columns.schema_union import unite
from datakit.normalize.config import Config, content
from datakit.normalize.formats import WEB_ARCHIVES
from datakit.normalize.phase_data import (
    RouteArguments,
    RouteDetails,
    RouteShared,
    SortDetails,
    SortShared,
    TypesDetails,
    to_plain,
)
from datakit.normalize.readers.dolma.attribute_files import attribute_files
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.slices import FileRange, are_large, cut_slices
from datakit.normalize.readers.web.columns import known_columns
from datakit.normalize.record_counts import ADDED, IN, NOT_PAGES, PREFIX, REMOVED, conservation
from datakit.normalize.settings.column_settings import strict_columns
from datakit.normalize.settings.splits import split_of_files
from datakit.normalize.where import column_types
from datakit.normalize.where.declared_types import DeclaredTypes
from datakit.storage.fingerprint import config_of
from datakit.storage.manifest import Partition

NAME = "normalize"
FORMAT_VERSION = 4
FIND_TYPES = "datakit.normalize.where.column_types:find_types"
WEB = "datakit.normalize.readers.web"
UNREAD = "normalize/files_not_read"  # counted only if the source has a limit
RECORD_COPIES = 4  # in memory: the bytes as read, the parsed columns, the text, and the rows of an exchange run
MOST_BITS = 20  # a million partitions; at 1 GiB each, they would hold more text than exists
PRELOADS = (
    Preload(__name__),
    Preload("datakit.normalize.warm_kernels", "datakit.normalize.warm_kernels:warm", kernels=True),
)


def plan(step: Step) -> Plan:
    """Plan the step.

    step.parameters["source"]: the name of the source.
    step.operations["base"]: the base URL of the source's files.
    step.operations["listed"]: the files that are read in place, path -> (size, modification time in ns, xxh3-128).
    step.operations["code_folder"]: the recipe's folder, the last place that is searched for the module of a transform.
    """
    config, files = config_of(step.parameters, Config), step.inputs[0].manifest.partitions
    sizes, files_of = [(file.path, file.bytes) for file in files], _inputs(step, config)
    cuts = yield from prepared(step, config, files_of, sizes, route_memory(config))
    every = cut_slices(files_of, sizes, config, cuts)
    inputs = replace(files_of, content_starts=content_starts(cuts))
    known = known_columns(config) if only_archives(sizes, config) and config.reads_columns_as_they_are else None
    where_types = yield from _where_types(step, config, inputs, every, known)
    counting = _route_phase(step, config, inputs, every, buckets=1, where_types=where_types)
    most = yield from limit.documents_of_slices(config.limit, counting)
    slices = every if most is None else every[: len(most)]
    bucket_bits = _bucket_bits(slices, config)
    routing = _route_phase(step, config, inputs, every, buckets=1 << bucket_bits, where_types=where_types)
    routed = yield limit.limited(routing, most)
    details = [msgspec.convert(result.details, RouteDetails) for result in routed]
    union = _united(step, details, config)
    _check_not_empty(step, config, routed)
    schema, columns = output_schema(union, config, again=all(entry.documents for entry in details))
    bits = partition_bits(sum(entry.value_bytes for entry in details), config.partition_bytes)
    runs = yield from merged(step, route.PHASE, run_sizes(routed), 1 << bucket_bits, readers=1 << bits)
    source, serialized = step.parameters["source"], schema.serialize().to_pybytes()
    shared = SortShared(runs, bits, bucket_bits, source, serialized, columns)
    exchanged = sum(output.bytes for result in routed for output in result.outputs)
    heavy = heavy_partitions([entry for one in details for entry in one.heavy], bits, bucket_bits)
    giants = giant_documents([entry for one in details for entry in one.giants], bits)
    unread = [[[0] * len(origins.COUNTED)] * len({part.path for part in ranges}) for ranges in every[len(slices) :]]
    files_task = origins.files_task(every, [*(entry.files for entry in details), *unread])
    *sorted_, listed = yield _sort_phase(shared, exchanged, heavy, giants, files_task)
    _check_conservation([*routed, *sorted_])
    partitions = [_partition(source, result) for result in sorted_]
    files = [*listed.outputs, *(file for result in sorted_ for file in result.outputs[1:])]
    counters = Counter(settled_values(union.names, config.conflicts, added(entry.values for entry in details)))
    counters.update({} if most is None else {UNREAD: limit.unread_files(every, len(slices))})
    return Output(partitions, schema, dict(counters), files=files)


def _inputs(step: Step, config: Config) -> Inputs:
    files = step.inputs[0].manifest.partitions
    copies = {file.path: file.copy for file in files if file.copy is not None}
    attributes = attribute_files(file.path for file in files) if config.format == formats.DOLMA else {}
    return Inputs(step.operations["base"], step.operations.get("listed", {}), copies=copies, attributes=attributes)


def _where_types(
    step: Step, config: Config, inputs: Inputs, slices: Sequence[Sequence[FileRange]], known: pa.Schema | None
) -> Generator[Phase, Sequence[TaskResult], bytes]:
    """Return the schema of the columns that `where` sees, in Arrow's IPC format. known: the columns of all records, if
    their format determines them. Raises ColumnError, RecipeError.
    """
    declared, found = DeclaredTypes(config), dict[str, pa.DataType]()
    if declared.undeclared and known is not None:
        missing = next((name for name in declared.undeclared if name not in known.names), None)
        if missing is not None:
            near = suggestion(missing, [*known.names, config.text_name])
            raise ColumnError(
                f"source {step.parameters['source']!r}: where: no record has the column {missing!r}; {near}"
            )
        found = {name: known.field(name).type for name in declared.undeclared}
    elif declared.undeclared:
        phase = _route_phase(step, config, inputs, slices, buckets=1, where_types=b"")
        tasks = tuple(replace(task, function=FIND_TYPES) for task in phase.tasks)
        results = yield replace(phase, name=column_types.PHASE, tasks=tasks)
        union = _united(step, [msgspec.convert(result.details, TypesDetails) for result in results], config)
        found = {name: union.field(name).type for name in declared.undeclared if name in union.names}
    return declared.schema(found)


def _splits(step: Step, config: Config) -> dict[str, str]:
    """Return the split of each file, or nothing if the source has no splits."""
    paths = [file.path for file in step.inputs[0].manifest.partitions]
    return split_of_files(step.parameters["source"], paths, config.splits)


def _route_phase(
    step: Step,
    config: Config,
    inputs: Inputs,
    slices: Sequence[Sequence[FileRange]],
    *,
    buckets: int,
    where_types: bytes,
) -> Phase:
    first, splits = origins.first_files(slices), _splits(step, config)
    sizes = {file.path: file.bytes for file in step.inputs[0].manifest.partitions}
    for path, files in inputs.attributes.items():
        sizes[path] += sum(sizes[file] for file in files)
    stored = stored_bytes(sizes, slices)
    # The names of runs begin with the task's key. Earlier versions cut a large source into more slices. If such a
    # version began the step, its runs must not have the names of runs of this version.
    count = f"-of-{len(slices):05d}" if are_large(slices) else ""
    return Phase(
        route.PHASE,
        tuple(
            _route_task(_arguments(f"{number:05d}{count}", ranges, first[number], inputs, splits), stored[number])
            for number, ranges in enumerate(slices)
        ),
        to_plain(RouteShared(step.operations["base"], content(config), buckets, where_types)),
        (*PRELOADS, *_extractors(config, slices), *beside(step.operations.get(CODE_FOLDER, ""))),
        memory_bytes=route_memory(config),
        memory_per_input_byte=0.0,
        tolerance=tolerance_of(step),
        hang_seconds=BATCH_HANG_SECONDS,
    )


def _extractors(config: Config, slices: Sequence[Sequence[FileRange]]) -> tuple[Preload, ...]:
    """Return the preload of what the reader of web archives needs, if there are any."""
    if not any(part.format in WEB_ARCHIVES for ranges in slices for part in ranges):
        return ()
    return (Preload(f"{WEB}.reader", f"{WEB}.extractors:warm", (config.extract,)),)


def route_memory(config: Config) -> int:
    """Return the number of bytes of memory for a routing task, which must hold several copies of the longest permitted
    record.

    With the default `max_document_bytes`, most of this memory is for the exchange writer and for the copies of a chunk
    of ordinary records.
    """
    return (1 << 30) + RECORD_COPIES * max(0, config.max_document_bytes - Config.max_document_bytes)


def stored_bytes(sizes: Mapping[str, int], slices: Sequence[Sequence[FileRange]]) -> list[int]:
    """Return how many bytes of stored files each slice reads. The stored bytes of a file are divided among its ranges
    in proportion to their weights (for Parquet, the sizes that the file's footer claims). sizes: the size of each file,
    by path.

    >>> ranges = [FileRange("a", "parquet", 30, 0, 1), FileRange("a", "parquet", 10, 1, 2), FileRange("b", "json", 9)]
    >>> stored_bytes({"a": 400, "b": 3}, [ranges[:1], ranges[1:]])
    [300, 103]
    """
    weights = Counter[str]()
    for ranges in slices:
        for part in ranges:
            weights[part.path] += part.weight
    return [sum(sizes[one.path] * one.weight // max(1, weights[one.path]) for one in ranges) for ranges in slices]


def _arguments(
    key: str, ranges: Sequence[FileRange], first_file: int, inputs: Inputs, splits: Mapping[str, str]
) -> RouteArguments:
    """Return arguments that describe only the task's own files. A new modification time of a file therefore invalidates
    only the tasks that read the file.
    """
    attributes = {part.path: list(inputs.attributes[part.path]) for part in ranges if part.path in inputs.attributes}
    paths = [path for part in ranges for path in (part.path, *attributes.get(part.path, ()))]
    listed = {path: inputs.listed[path] for path in paths if path in inputs.listed}
    copies = {path: inputs.copies[path] for path in paths if path in inputs.copies}
    own_splits = {part.path: splits[part.path] for part in ranges if part.path in splits}
    places = ((part.path, part.start) for part in ranges)
    starts = [(*place, inputs.content_starts[place]) for place in places if place in inputs.content_starts]
    return RouteArguments(
        key, list(ranges), listed, first_file, copies, splits=own_splits, content_starts=starts, attributes=attributes
    )


def _route_task(arguments: RouteArguments, stored: int) -> Task:
    ranges = arguments.ranges
    weight, file = sum(part.weight for part in ranges), ranges[0].path if len(ranges) == 1 else ""
    function = "datakit.normalize.route:route_slice"
    return Task(arguments.key, function, to_plain(arguments), input_bytes=weight, stored_bytes=stored, file=file)


def _sort_phase(
    shared: SortShared, exchange_bytes: int, heavy: Mapping[int, int], giants: Mapping[int, int], files_task: Task
) -> Phase:
    """Return the phase `sort`. A task reads all copies of its texts but holds only one of each. Ids are distributed
    uniformly, so only giant documents can make a task hold much more than the mean.
    """
    mean, function = exchange_bytes >> shared.bits, "datakit.normalize.sort:sort_partition"
    tasks = [
        Task(
            f"{number:05d}", function, {"partition": number}, input_bytes=max(mean, heavy.get(number, 0)),
            held_bytes=mean + giants.get(number, 0),
        )
        for number in range(1 << shared.bits)
    ]  # fmt: skip
    return Phase(
        sort.PHASE, (*tasks, files_task), to_plain(shared), PRELOADS, memory_bytes=512 << 20, memory_per_input_byte=4.0
    )


def heavy_partitions(heavy: Sequence[tuple[int, int]], bits: int, bucket_bits: int) -> Counter[int]:
    """Return how many bytes each of 2**bits partitions may get from heavy buckets, which hold a large share of a slice.
    A partition with rows from such a bucket may far exceed the mean size. heavy: (bucket, size in bytes) pairs.

    >>> heavy_partitions([(5, 100), (4, 10)], 2, 3), heavy_partitions([(1, 7)], 2, 1)
    (Counter({2: 110}), Counter({2: 7, 3: 7}))
    """
    found = Counter[int]()
    for bucket, size in heavy:
        first = bucket >> (bucket_bits - bits) if bits <= bucket_bits else bucket << (bits - bucket_bits)
        for number in range(first, first + (1 << max(0, bits - bucket_bits))):
            found[number] += size
    return found


def giant_documents(giants: Sequence[tuple[int, int, int]], bits: int) -> Counter[int]:
    """Return the total size, in bytes, of the giant documents in each of 2**bits partitions. Copies of a text count
    once, with the largest size. giants: see `RouteDetails`.

    >>> giant_documents([(0, 1, 100), (1 << 63, 1, 10), (0, 1, 99), (0, 2, 1)], 1)
    Counter({0: 101, 1: 10})
    """
    distinct, found = dict[tuple[int, int], int](), Counter[int]()
    for high, low, size in giants:
        distinct[high, low] = max(distinct.get((high, low), 0), size)
    for (high, _), size in distinct.items():
        found[high >> (64 - bits)] += size
    return found


def _bucket_bits(slices: Sequence[Sequence[FileRange]], config: Config) -> int:
    """Return how many of an id's top bits select its bucket: an estimate of how many will select its partition. The
    estimate is based on the bytes to be read. If there turns out to be more text, several partitions share a bucket.
    """
    expected = sum(part.weight for ranges in slices for part in ranges)
    # more text can mean fewer bits: slightly more than 1 GiB is divided into fewer partitions than exactly 1 GiB
    sizes = (expected, min(expected, 1 << 30))
    return max(partition_bits(size, config.partition_bytes) for size in sizes)


def partition_bits(value_bytes: int, partition_bytes: int | None = None) -> int:
    """Return the smallest k (at most MOST_BITS) for which the mean size of 2**k partitions is below `partition_bytes`;
    if `partition_bytes` is None, the limit depends on `value_bytes`.

    value_bytes: the total size of the values in all columns, in bytes.

    >>> [partition_bits(size) for size in (0, 32 << 20, 1 << 30, (1 << 30) + 1, (1 << 40) + 1)]
    [0, 1, 6, 4, 11]
    """
    if partition_bytes is None:
        partition_bytes = 32 << 20 if value_bytes <= 1 << 30 else 128 << 20 if value_bytes <= 1 << 40 else 1 << 30
    bits = 0
    while value_bytes >= partition_bytes << bits and bits < MOST_BITS:
        bits += 1
    return bits


def _united(step: Step, details: Sequence[RouteDetails | TypesDetails], config: Config) -> pa.Schema:
    """Unite the columns of all slices, except the text column. Raises RefusedError if types conflict or if no record
    has a column that the recipe names.
    """
    encoded = [(file, pa.BufferReader(bytes.fromhex(digits))) for entry in details for file, digits in entry.schemas]
    schemas = [(file, pa.ipc.read_schema(data)) for file, data in encoded]
    largest: dict[Path, int] = {}
    for path, value in (large for entry in details for large in entry.large):
        largest[path] = max(value, largest.get(path, 0))
    union, source = unite(schemas, largest, strict_columns(config.conflicts)), f"source {step.parameters['source']!r}"
    if schemas:
        absent = set.intersection(*(set(entry.absent) for entry in details))
        check_wanted(source, config, absent, [name for entry in details for name in entry.names])
    if config.id not in ("id", "", *union.names) and schemas:
        raise ColumnError(f"{source}: no record has the id column {config.id!r}; {suggestion(config.id, union.names)}")
    return union


def _check_not_empty(step: Step, config: Config, routed: Sequence[TaskResult]) -> None:
    counters, source = _counters(routed), step.parameters["source"]
    removed = {name.removeprefix(PREFIX): counters[name] for name in (*REMOVED, *NOT_PAGES) if counters[name]}
    if counters[IN] + counters[ADDED] == sum(removed.values()):
        reasons = ", ".join(f"{count} {name}" for name, count in removed.items()) or "the source is empty"
        records = [f"{bad.file}:{bad.position}: {bad.reason}" for task in routed for bad in task.quarantined]
        raise EmptyStageError(
            f"source {source!r}: of its {counted(counters[IN], 'record')}, none became a document ({reasons}); "
            f"is {config.text_described} the right text column? `datakit inspect` shows what the source contains"
            + (f"; first quarantined record: {records[0]}" if records else "")
        )


def _counters(results: Sequence[TaskResult]) -> Counter[str]:
    return added(result.counters for result in results)


def _check_conservation(results: Sequence[TaskResult]) -> None:
    broken = conservation(_counters(results))
    if broken:
        raise DatakitError(f"normalize lost track of records, which is a bug in datakit: {broken}")


def _partition(source: str, result: TaskResult) -> Partition:
    shard, details = result.outputs[0], msgspec.convert(result.details, SortDetails)
    file = shard.path, source, shard.rows, shard.bytes, shard.xxh3
    return Partition(*file, details.text_bytes, first_id=details.first_id, last_id=details.last_id)
