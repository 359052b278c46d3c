"""Tokenize: the consolidated dataset as a token cache.

One shard a partition, in order; a partition without documents has none. First the tokenizer is copied beside the cache
and its contract is made (one task), so every node of a cluster reads the same file; then each task encodes some
partitions, verifies a sample of each against the reference and writes their shards. The documents of the cache are the
documents of the dataset, in number and order, or the step fails.

Cost: of each CPU-second on 121 MB in 26 partitions, encoding takes half, verifying a third (less where partitions are
larger), reading Parquet a twentieth and writing the same; 45 MB of text a CPU-second, 93 in one large partition.
Memory: some 300 MB for the tokenizers and a batch, and the shard's tokens while its array is encoded.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from datakit.engine.grouping import neighbours
from datakit.engine.preload import preloaded
from datakit.engine.task import (
    Output,
    OutputFile,
    Phase,
    Plan,
    Preload,
    Step,
    Task,
    TaskContext,
    TaskResult,
    tolerance_of,
)
from datakit.errors import CorruptError, EmptyStageError, TokenizerError
from datakit.storage import atomic, urls
from datakit.storage.manifest import Partition
from datakit.tokenize import train
from datakit.tokenize.batches import text_batches
from datakit.tokenize.cache import EMPTY_XXH3, Documents, TokenShard, write_shard
from datakit.tokenize.contract import Contract, frame
from datakit.tokenize.in_hand import InHand
from datakit.tokenize.layout import (
    FORMAT,
    STAGE,
    TOKENIZER_FILE,
    CacheDetails,
    ShardFiles,
    SourceSums,
    array_form,
    shard_name,
)
from datakit.tokenize.policy import make_contract
from datakit.tokenize.tokenizer import Encoder, Tokenizer, hold_threads, parse
from datakit.tokenize.verify import Verification

NAME = STAGE
FORMAT_VERSION = 1
LOAD = "datakit.tokenize.tokenizer:load"
MEMORY = {
    "uint16": 2.0,
    "uint32": 5.0,
}  # bytes for a byte of text: one token in it stored raw, or half a one compressed


# --- configuration


@dataclass(frozen=True)
class Config:
    """How documents become tokens.

    tokenizer: path or URL of a tokenizer.json, or "train": a byte-level BPE trained on this dataset.
    encoder: "auto" takes fastokens where it can load the tokenizer, else tokenizers; or one of the two.
    add: what stands around each document, "eos", "bos", "both" or "none".
    bos, eos: these tokens by name; without, the usual name that the tokenizer has.
    max_quarantined: how many documents that bring the encoder down may be left out; 0.001: a share.
    quarantine: documents ("partition:row") that may be left out beside these.
    """

    tokenizer: str
    encoder: str = "auto"
    add: str = "eos"
    bos: str | None = None
    eos: str | None = None
    max_quarantined: int | float = 0
    quarantine: tuple[str, ...] = ()


# --- plan


def plan(step: Step) -> Plan:
    """Settle the contract, then encode all partitions."""
    (clean,) = step.inputs_of("consolidate")
    wanted = {key: step.parameters.get(key) for key in ("encoder", "add", "bos", "eos")}
    task = Task("contract", f"{__name__}:settle_contract", wanted)
    (settled,) = yield Phase("contract", (task,), shared={"tokenizer": _tokenizer_file(step)})
    contract = settled.details["contract"]
    entries = [entry for entry in _partitions(clean.directory, clean.manifest.partitions) if entry["rows"]]
    groups = neighbours([entry["text_bytes"] for entry in entries])
    results = yield Phase(
        "encode",
        tuple(_task(entries[group.start : group.stop]) for group in groups),
        shared={"contract": contract},
        preloads=_preloads(step),
        memory_per_input_byte=MEMORY[msgspec.convert(contract, Contract).dtype.name],
        tolerance=tolerance_of(step),
    )
    return _output([entry for result in results for entry in result.details["shards"]], entries, contract)


def _tokenizer_file(step: Step) -> bytes:
    """The tokenizer.json's bytes, checked against what the step was planned with."""
    for trained in step.inputs_of(train.NAME):
        return urls.read_bytes(urls.join(trained.directory, TOKENIZER_FILE))
    path = step.operations["tokenizer_path"]
    data = urls.read_bytes(path)
    found, wanted = hashlib.sha256(data).hexdigest(), step.parameters["tokenizer_sha256"]
    if found != wanted:
        raise TokenizerError(f"{path} has sha256 {found}, the step was planned with {wanted}: run the recipe again")
    return data


def _preloads(step: Step) -> tuple[Preload, ...]:
    tokenizer = urls.join(step.directory, TOKENIZER_FILE)
    return (Preload(__name__), Preload("datakit.tokenize.tokenizer", LOAD, (tokenizer,)))


def _partitions(directory: str, partitions: list[Partition]) -> Iterator[dict[str, Any]]:
    """Each partition as a task's arguments say it; a shard's number is its partition's number in its source."""
    numbers = Counter[str]()
    for partition in partitions:
        yield {
            "dataset": urls.join(directory, partition.path),
            "name": partition.path,
            "shard": shard_name(partition.source, numbers[partition.source]),
            "source": partition.source,
            "rows": partition.rows,
            "text_bytes": partition.text_bytes,
            "first_id": partition.first_id,
            "last_id": partition.last_id,
        }
        numbers[partition.source] += 1


def _task(entries: list[dict[str, Any]]) -> Task:
    key = entries[0]["shard"] if len(entries) == 1 else f"{entries[0]['shard']} and {len(entries) - 1} more"
    size = sum(entry["text_bytes"] for entry in entries)
    return Task(key, f"{__name__}:encode", {"partitions": entries}, size, halves="partitions")


def _output(shards: list[dict[str, Any]], entries: list[dict[str, Any]], contract: dict[str, Any]) -> Output:
    if not shards:
        raise EmptyStageError("tokenize has no document to encode: the consolidated dataset is empty")
    for shard, entry in zip(shards, entries, strict=True):
        if (shard["path"], shard["rows"] + shard["quarantined"]) != (entry["shard"], entry["rows"]):
            raise CorruptError(f"{entry['dataset']} has {entry['rows']} documents, its shard {shard['rows']}")
    typed = msgspec.convert(contract, Contract)
    lengths = sum((Counter(shard["lengths"]) for shard in shards), Counter[str]())
    details = CacheDetails(
        format=FORMAT,
        contract=typed,
        array=array_form(typed.dtype),
        shards=[msgspec.convert(shard["files"], ShardFiles) for shard in shards],
        sources=_sums(shards),
        lengths={power: lengths[power] for power in sorted(lengths, key=int)},
    )
    keys = ("path", "source", "rows", "bytes", "xxh3", "text_bytes", "tokens", "first_id", "last_id")
    return Output(
        partitions=[Partition(**{key: shard[key] for key in keys}) for shard in shards],
        schema=pa.schema([("token", pa.from_numpy_dtype(typed.dtype))]),
        details=msgspec.to_builtins(details),
    )


def _sums(shards: list[dict[str, Any]]) -> dict[str, SourceSums]:
    sums: dict[str, Counter[str]] = {}
    for shard in shards:
        counts = {"shards": 1, "documents": shard["rows"], "tokens": shard["tokens"], "text_bytes": shard["text_bytes"]}
        sums.setdefault(shard["source"], Counter()).update(counts)
    return {source: SourceSums(**counts) for source, counts in sums.items()}


# --- task functions


def settle_contract(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write tokenizer.json beside the cache and say what its tokens will mean."""
    data, url = shared["tokenizer"], urls.join(context.step_directory, TOKENIZER_FILE)
    tokenizer = parse(data, url)
    encoder = tokenizer.encoder(arguments["encoder"])
    hold_threads(encoder, context.cpus)
    contract = make_contract(tokenizer, encoder, arguments["add"], arguments["bos"], arguments["eos"])
    committed = atomic.commit_bytes(data, url)
    file = OutputFile(TOKENIZER_FILE, committed.bytes, committed.xxh3)
    return TaskResult((file,), details={"contract": msgspec.to_builtins(contract)})


def encode(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the shards of some partitions."""
    contract = msgspec.convert(shared["contract"], Contract)
    tokenizer: Tokenizer = preloaded(LOAD, urls.join(context.step_directory, TOKENIZER_FILE))
    contract.require(tokenizer.sha256, context.step_directory)
    encoder = tokenizer.encoder(contract.encoder)
    hold_threads(encoder, context.cpus)
    counters, outputs, shards, left_out = Counter[str](), [], [], []
    for entry in arguments["partitions"]:
        check = Verification(tokenizer.reference, encoder, entry["rows"], entry["dataset"])
        in_hand = InHand(entry["name"], context)
        documents = _documents(entry, encoder, check, contract, in_hand)
        shard = write_shard(entry["shard"], documents, contract, context)
        outputs += shard.outputs
        shards.append(_described(entry, shard, in_hand))
        counters.update(_counts(entry, shard, check, in_hand))
        left_out += in_hand.left_out
        context.report(counters["tokenize/documents"], counters["tokenize/text_bytes"])
    return TaskResult(
        tuple(outputs),
        dict(counters),
        {"shards": shards},
        tuple(left_out),
        records=counters["tokenize/documents"],
        bytes_read=counters["tokenize/text_bytes"],
    )


def _documents(
    entry: dict[str, Any], encoder: Encoder, check: Verification, contract: Contract, in_hand: InHand
) -> Iterator[Documents]:
    """A partition's documents, encoded, a sample of them verified."""
    for batch in in_hand.batches(text_batches(entry["dataset"]), lambda one: encoder.encode_batch(one.strings())):
        ids, lengths = encoder.encode_batch(batch.strings())
        if encoder.name != "tokenizers":
            check.check(batch, ids, lengths)
        yield Documents(batch.ids, *frame(ids, lengths, contract))


def _described(entry: dict[str, Any], shard: TokenShard, in_hand: InHand) -> dict[str, Any]:
    data, metadata = (file or OutputFile("", 0, EMPTY_XXH3) for file in (shard.data, shard.metadata))
    files = ShardFiles(metadata.bytes, metadata.xxh3, shard.documents.bytes, shard.documents.xxh3)
    return {
        "source": entry["source"],
        "text_bytes": entry["text_bytes"] - in_hand.text_bytes,
        "first_id": in_hand.ends[0],
        "last_id": in_hand.ends[1],
        "quarantined": len(in_hand.left_out),
        "path": shard.path,
        "rows": shard.documents.rows,
        "tokens": shard.tokens,
        "bytes": data.bytes,
        "xxh3": data.xxh3,
        "lengths": shard.lengths,
        "files": msgspec.to_builtins(files),
    }


def _counts(entry: dict[str, Any], shard: TokenShard, check: Verification, in_hand: InHand) -> dict[str, int]:
    return {
        "tokenize/documents": shard.documents.rows,
        "tokenize/tokens": shard.tokens,
        "tokenize/text_bytes": entry["text_bytes"] - in_hand.text_bytes,
        "tokenize/quarantined": len(in_hand.left_out),
        "tokenize/verified_documents": check.documents,
        "tokenize/verified_bytes": check.text_bytes,
    }
