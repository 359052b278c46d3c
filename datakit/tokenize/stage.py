"""Stage `tokenize`: decides how partitions become tasks and shards of the token cache, and checks that the shards cover
all documents that stay. The normalized partitions are read without the rows that the select step lists. Each partition
in which documents stay becomes one shard, in order. First, one task copies the tokenizer of the contract step into the
cache's directory, so that the cache can be used without that step, and checks that the installed libraries still
fulfill the contract. Then each of the other tasks encodes one or more partitions or a range of a large one
(document_ranges.py), verifies a sample of their texts and conversations against the reference encoder, if there is one,
and writes the shards; a last phase makes the shards of large partitions from their ranges. The step fails unless the
shards are in the dataset's order and each shard accounts for all documents of its partition that stay.

A source's documents are texts unless `formats` declares them to be conversations (chat.py) or lists of tokens
(prebuilt.py); encode_documents.py encodes all three. Memory per task: about 250 MB for the tokenizers and a batch, plus
three times the size of the shard's tokens if they are compressed. If they are not, or if a task encodes a range, it
holds no tokens but those of a batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec
import pyarrow as pa

from datakit.cache.contract import Contract
from datakit.cache.layout import STAGE, TOKENIZER_FILE, shard_name
from datakit.cache.written_shards import WrittenShard, cache_details
from datakit.engine.partition_grouping import neighbours
from datakit.engine.task import (
    EXCHANGE_FOLDER,
    Output,
    Phase,
    Plan,
    Step,
    StepInput,
    Task,
    TaskResult,
    tolerance_of,
)
from datakit.errors import CorruptError, EmptyStageError, RecipeError, suggestion
from datakit.storage import urls
from datakit.storage.fingerprint import config_of, spelled_out
from datakit.storage.manifest import Partition
from datakit.storage.selection.edits import has_edits
from datakit.storage.selection.leaving_rows import selected, shards_of
from datakit.tokenize import contract_stage, tasks
from datakit.tokenize.config import TEXT, Config
from datakit.tokenize.document_ranges import RANGE_BYTES, Part, parts_of
from datakit.tokenize.encode_documents import PartitionToEncode
from datakit.tokenize.encoders.custom import code_of
from datakit.tokenize.encoders.preloaded_tokenizer import tokenizer_preloads
from datakit.tokenize.templates.limits import Limits

NAME = STAGE
FORMAT_VERSION = 6
MEMORY = {  # bytes of memory per byte of text, by the type of the tokens; half a token per byte of text
    "uint16": 3.0,  # for a partition that is one document, whose ids are held as uint32 and as uint16
    "uint32": 6.0,  # tokens are compressed as a whole, and held three times
}
TASK_MEMORY = 1 << 30  # bytes for the tokenizers and a batch; the process that renders conversations adds its limit
JOIN_MEMORY = {"uint16": 2.0, "uint32": 4.0}  # per byte of encoded documents; compressed tokens are held three times


def plan(step: Step) -> Plan:
    """Plan one task that copies the tokenizer, then the tasks that encode all partitions."""
    # For a tokenizer file, the parameters hold the file's hash instead of the key `tokenizer`, which Config requires.
    config = config_of({"tokenizer": "", **step.parameters}, Config)
    (settled,) = step.inputs_of(contract_stage.NAME)
    contract = contract_stage.contract_of(settled)
    tokenizer = urls.join(settled.directory, TOKENIZER_FILE)
    _check_formats(config, [str(entry.source) for entry in step.inputs_of("normalize")])
    _check_edits(config, step)
    shared = {"contract": msgspec.to_builtins(contract), "tokenizer": tokenizer, "config": spelled_out(config)}
    preloads = tokenizer_preloads(tokenizer, code_of(config.tokenizer), config.has_loss_masks)
    task = Task("tokenizer", f"{tasks.__name__}:take_tokenizer", {})
    (taken,) = yield Phase("tokenizer", (task,), shared=shared, preloads=preloads)
    contract = msgspec.structs.replace(contract, encoder_version=taken.details["encoder_version"])
    partitions = [entry for entry in _partitions(step) if entry.rows]
    groups, ranges = list(_group_tasks(partitions)), list(_range_tasks(partitions))
    results = yield Phase(
        "encode",
        (*groups, *ranges),
        shared=shared,
        preloads=preloads,
        memory_bytes=TASK_MEMORY + (Limits().memory if contract.chat_template is not None else 0),
        memory_per_input_byte=MEMORY[contract.dtype.name],
        tolerance=tolerance_of(step),
    )
    whole, encoded, joined = results[: len(groups)], results[len(groups) :], list[TaskResult]()
    if encoded:
        joined += yield Phase(
            "join",
            tuple(_join_tasks(partitions, encoded)),
            shared={"contract": shared["contract"]},
            preloads=preloads,
            memory_per_input_byte=JOIN_MEMORY[contract.dtype.name],
        )
    place = {entry.shard: number for number, entry in enumerate(partitions)}
    shards = heapq.merge(_shards(whole), _shards(joined), key=lambda shard: place[shard.path])
    return _output(shards, partitions, contract)


def _check_formats(config: Config, sources: Sequence[str]) -> None:
    for source in config.formats:
        if source not in sources:
            raise RecipeError(f"tokenize.formats: no source {source!r}; {suggestion(source, sources)}")


def _check_edits(config: Config, step: Step) -> None:
    """Raise RecipeError if texts are edited that are not encoded: conversations and tokens are in other columns."""
    for source, kind in config.formats.items():
        if kind != TEXT and any(has_edits(select.manifest, source) for select in step.inputs_of("select")):
            raise RecipeError(
                f"tokenize.formats: source {source!r} is encoded from {kind}, not from its texts, so the edits of "
                "[select] would not reach the token cache; name the other sources in the `sources` of each edit"
            )


def _partitions(step: Step) -> Iterator[PartitionToEncode]:
    """Yield the partitions of the dataset in order, with their selections."""
    (select,) = step.inputs_of("select")
    for entry in step.inputs_of("normalize"):
        yield from _partitions_of(entry, select)


def _partitions_of(entry: StepInput, select: StepInput) -> Iterator[PartitionToEncode]:
    """Yield a source's partitions or, if it is divided into buckets, all partitions of each bucket. The name of each
    shard contains the index of its partition within the source.
    """
    assert entry.source is not None
    partitions = entry.manifest.partitions_of(entry.source)
    selections = selected(select.directory, select.manifest, entry.source, partitions)
    for shard in shards_of(selections):
        partition, selection = partitions[shard.number], selections[shard.number]
        text_bytes = partition.text_bytes or 0
        yield PartitionToEncode(
            url=urls.join(entry.directory, partition.path),
            leaving=selection.leaving,
            name=partition.path,
            shard=shard_name(entry.source, shard.number, shard.bucket),
            source=entry.source,
            rows=shard.rows,
            text_bytes=text_bytes if shard.bucket is None else text_bytes * shard.rows // max(1, partition.rows),
            file_bytes=text_bytes,
            edits=selection.edits,
            bucket=shard.bucket,
            members=shard.members,
        )


def _group_tasks(partitions: Sequence[PartitionToEncode]) -> Iterator[Task]:
    """Yield the tasks that encode whole partitions."""
    whole = [entry for entry in partitions if parts_of(entry.file_bytes) == 1]
    for group in neighbours([entry.file_bytes for entry in whole], RANGE_BYTES):
        yield _task(whole[group.start : group.stop])


def _range_tasks(partitions: Sequence[PartitionToEncode]) -> Iterator[Task]:
    """Yield the tasks that encode the ranges of large partitions."""
    for entry, count in _divided(partitions):
        for number in range(count):
            key = f"{entry.shard} {number + 1} of {count}"
            arguments = {
                "partition": msgspec.to_builtins(entry),
                "part": msgspec.to_builtins(Part(number, count)),
                "output": urls.join(EXCHANGE_FOLDER, "ranges", entry.shard, f"{number:05d}.arrow"),
            }
            yield Task(key, f"{tasks.__name__}:encode_range", arguments, entry.file_bytes // count)


def _join_tasks(partitions: Sequence[PartitionToEncode], encoded: Sequence[TaskResult]) -> Iterator[Task]:
    """Yield the tasks that make the shards of large partitions. encoded: the results of all ranges, in order."""
    left = iter(encoded)
    for entry, count in _divided(partitions):
        found = list(islice(left, count))
        size = sum(file.bytes for result in found for file in result.outputs)
        arguments = {"partition": msgspec.to_builtins(entry), "ranges": [result.details["range"] for result in found]}
        yield Task(entry.shard, f"{tasks.__name__}:join", arguments, size)


def _divided(partitions: Sequence[PartitionToEncode]) -> Iterator[tuple[PartitionToEncode, int]]:
    """Yield each large partition with the number of its ranges."""
    for entry in partitions:
        if (count := parts_of(entry.file_bytes)) > 1:
            yield entry, count


def _task(partitions: Sequence[PartitionToEncode]) -> Task:
    first = partitions[0].shard
    key = first if len(partitions) == 1 else f"{first} and {len(partitions) - 1} more"
    size = sum(entry.file_bytes for entry in partitions)
    arguments = {"partitions": msgspec.to_builtins(partitions)}
    return Task(key, f"{tasks.__name__}:encode", arguments, size, bisect_argument="partitions")


def _shards(results: Sequence[TaskResult]) -> Iterator[WrittenShard]:
    """Yield the reports on the shards, one by one."""
    for result in results:
        yield from msgspec.convert(result.details["shards"], list[WrittenShard])


def _output(shards: Iterable[WrittenShard], partitions: Sequence[PartitionToEncode], contract: Contract) -> Output:
    """Return the description of the cache. The reports on the shards are read one by one, because 100,000 of them would
    take gigabytes of memory.
    """
    written = list[Partition]()
    details = cache_details(_checked(shards, partitions, written), contract)
    if not written:
        raise EmptyStageError("tokenize has no documents to encode: no document stays in the dataset")
    schema = pa.schema([("token", pa.from_numpy_dtype(contract.dtype))])
    return Output(written, schema, details=msgspec.to_builtins(details))


def _checked(
    shards: Iterable[WrittenShard], partitions: Sequence[PartitionToEncode], written: list[Partition]
) -> Iterator[WrittenShard]:
    """Yield the shards, and add each to `written`. Raises CorruptError if one does not belong to its partition."""
    for shard, partition in zip(shards, partitions, strict=True):
        if (shard.path, shard.rows + shard.quarantined) != (partition.shard, partition.rows):
            raise CorruptError(
                f"{partition.url} has {partition.rows} documents and belongs in shard {partition.shard}, but shard "
                f"{shard.path} accounts for {shard.rows + shard.quarantined}"
            )
        written.append(shard.partition)
        yield shard
