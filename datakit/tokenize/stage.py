"""Stage `tokenize`: decides how partitions become tasks and shards of the token cache, and checks that shards cover all
documents that stay. The normalized partitions are read, without the rows that the select step lists. Each partition in
which documents stay becomes one shard, in order. First, one task makes the cache's contract and copies the tokenizer
into the cache's directory, so that every node of a cluster reads the same tokenizer file. Then each of the other tasks
encodes one or more partitions, verifies a sample of their texts and conversations against the reference encoder, if
there is one, and writes the shards. The step fails unless the shards are in the dataset's order and each shard accounts
for all documents of its partition that stay.

A source's documents are texts unless `formats` declares them to be conversations (chat.py) or lists of tokens
(prebuilt.py); encode_documents.py encodes all three. Memory per task: about 300 MB for the tokenizers and a batch, plus
three times the size of the shard's tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa

from datakit.cache.contract import Contract
from datakit.cache.layout import STAGE, TOKENIZER_FILE, shard_name
from datakit.cache.written_shards import WrittenShard, cache_details
from datakit.engine.partition_grouping import neighbours
from datakit.engine.task import Output, Phase, Plan, Preload, Step, StepInput, Task, tolerance_of
from datakit.errors import CorruptError, EmptyStageError, RecipeError, TokenizerError, suggestion
from datakit.storage import urls
from datakit.storage.fingerprint import config_of, spelled_out
from datakit.storage.manifest import Partition
from datakit.storage.selection.leaving_rows import selected
from datakit.tokenize import tasks, train_stage
from datakit.tokenize.config import Config
from datakit.tokenize.encode_documents import PartitionToEncode
from datakit.tokenize.encoders.custom import code_of, describe, is_custom
from datakit.tokenize.tasks import LOAD

NAME = STAGE
FORMAT_VERSION = 5
MEMORY = {  # bytes of memory per byte of text, by the type of the tokens
    "uint16": 3.0,  # half a token per byte of text, at 2 bytes per token, held three times
    "uint32": 6.0,
}
CONTRACT_SETTINGS = ("encoder", "add", "bos", "eos", "special_strings")


def plan(step: Step) -> Plan:
    """Plan one task that makes the contract, then the tasks that encode all partitions."""
    # For a tokenizer file, the parameters hold the file's hash instead of the key `tokenizer`, which Config requires.
    config = config_of({"tokenizer": "", **step.parameters}, Config)
    settings = {key: getattr(config, key) for key in CONTRACT_SETTINGS}
    task = Task("contract", f"{tasks.__name__}:settle_contract", settings)
    code = code_of(config.tokenizer)
    shared = {"tokenizer": _tokenizer_file(step), **({"code": code} if code else {})}
    (settled,) = yield Phase("contract", (task,), shared=shared)
    contract = msgspec.convert(settled.details["contract"], Contract)
    _check_formats(config, [str(entry.source) for entry in step.inputs_of("normalize")])
    partitions = [entry for entry in _partitions(step) if entry.rows]
    tokenizer = urls.join(step.directory, TOKENIZER_FILE)
    groups = neighbours([entry.text_bytes for entry in partitions])
    results = yield Phase(
        "encode",
        tuple(_task(partitions[group.start : group.stop]) for group in groups),
        shared={"contract": settled.details["contract"], "config": spelled_out(config)},
        preloads=(Preload(tasks.__name__), Preload("datakit.tokenize.encoders.tokenizer", LOAD, (tokenizer, code))),
        memory_per_input_byte=MEMORY[contract.dtype.name],
        tolerance=tolerance_of(step),
    )
    shards = (shard for result in results for shard in msgspec.convert(result.details["shards"], list[WrittenShard]))
    return _output(shards, partitions, contract)


def _check_formats(config: Config, sources: Sequence[str]) -> None:
    for source in config.formats:
        if source not in sources:
            raise RecipeError(f"tokenize.formats: no source {source!r}; {suggestion(source, sources)}")


def _tokenizer_file(step: Step) -> bytes:
    """Return the content of the tokenizer.json. Raises TokenizerError if the tokenizer was given as a file that has
    changed since the step was planned.
    """
    tokenizer = step.parameters.get("tokenizer") or ""
    if is_custom(tokenizer):
        return describe(tokenizer, step.parameters.get("tokenizer_version"))
    for trained in step.inputs_of(train_stage.NAME):
        return urls.read_bytes(urls.join(trained.directory, TOKENIZER_FILE))
    path = step.operations["tokenizer_path"]
    data = urls.read_bytes(path)
    found, planned = hashlib.sha256(data).hexdigest(), step.parameters["tokenizer_sha256"]
    if found != planned:
        raise TokenizerError(
            f"{path} has the sha256 {found}, but the step was planned with {planned}; run the recipe again"
        )
    return data


def _partitions(step: Step) -> Iterator[PartitionToEncode]:
    """Yield the dataset's partitions in order, with their selections."""
    (select,) = step.inputs_of("select")
    for entry in step.inputs_of("normalize"):
        yield from _partitions_of(entry, select)


def _partitions_of(entry: StepInput, select: StepInput) -> Iterator[PartitionToEncode]:
    """Yield a source's partitions. The name of each shard contains the index of its partition within the source."""
    assert entry.source is not None
    partitions = entry.manifest.partitions_of(entry.source)
    selections = selected(select.directory, select.manifest, entry.source, partitions)
    for number, (partition, selection) in enumerate(zip(partitions, selections, strict=True)):
        yield PartitionToEncode(
            url=urls.join(entry.directory, partition.path),
            leaving=selection.leaving,
            name=partition.path,
            shard=shard_name(entry.source, number),
            source=entry.source,
            rows=selection.rows,
            text_bytes=partition.text_bytes or 0,
        )


def _task(partitions: Sequence[PartitionToEncode]) -> Task:
    first = partitions[0].shard
    key = first if len(partitions) == 1 else f"{first} and {len(partitions) - 1} more"
    size = sum(entry.text_bytes for entry in partitions)
    arguments = {"partitions": msgspec.to_builtins(partitions)}
    return Task(key, f"{tasks.__name__}:encode", arguments, size, bisect_argument="partitions")


def _output(shards: Iterable[WrittenShard], partitions: Sequence[PartitionToEncode], contract: Contract) -> Output:
    """Return the cache's description. The reports of the shards are read one by one: all of them would take gigabytes
    if there are 100,000.
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
