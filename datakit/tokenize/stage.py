"""Tokenize: the consolidated dataset as a token cache.

One shard a partition, in order; a partition without documents has none. First the tokenizer is copied beside the cache
and its contract is made (one task), so every node of a cluster reads the same file; then each task encodes some
partitions, verifies a sample of each against the reference and writes their shards. The documents of the cache are the
documents of the dataset, in number and order, or the step fails.

A source's documents are texts, or, if `formats` says so, conversations (chat.py) or lists of tokens (prebuilt.py): what
encodes them is in encode_documents.py. Memory: some 300 MB for the tokenizers and a batch, and three times the shard's
tokens.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.cache.contract import Contract
from datakit.cache.layout import (
    FORMAT,
    FREQUENT,
    STAGE,
    TOKENIZER_FILE,
    CacheDetails,
    ShardFiles,
    SourceSums,
    array_form,
    shard_name,
)
from datakit.cache.writer import EMPTY_XXH3, TokenShard, write_shard
from datakit.engine.quarantine import check_limit
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
from datakit.engine.task_grouping import neighbours
from datakit.engine.worker.preload import preloaded
from datakit.errors import CorruptError, EmptyStageError, RecipeError, TokenizerError, suggestion
from datakit.storage import atomic, urls
from datakit.storage.fingerprint import config_of, spelled_out
from datakit.storage.manifest import Partition
from datakit.tokenize import train_stage
from datakit.tokenize.chat import chat_format
from datakit.tokenize.encode_documents import KINDS, Encoding, encoded_documents
from datakit.tokenize.encoders.base import Encoder
from datakit.tokenize.encoders.custom import describe, is_custom
from datakit.tokenize.encoders.tokenizer import ENCODERS, SPECIAL_STRINGS, hold_threads, parse
from datakit.tokenize.guarded_batches import InHand
from datakit.tokenize.make_contract import AnyTokenizer, make_contract
from datakit.tokenize.reference_check import Verification

NAME = STAGE
FORMAT_VERSION = 3
LOAD = "datakit.tokenize.encoders.tokenizer:load"
MEMORY = {  # bytes for a byte of text
    "uint16": 3.0,  # half a token, three times 2 bytes
    "uint32": 6.0,
}
CHOICES = ("encoder", "add", "bos", "eos", "special_strings")


# --- configuration


@dataclass(frozen=True)
class Config:
    """How documents become tokens.

    tokenizer: path or URL of a tokenizer.json; "train": a byte-level BPE trained on this dataset; "bytes"; or a
    tokenizer of one's own, "package.module:function", with tokenizer_version (tokenize/encoders/custom.py). encoder:
    "auto" takes fastokens where it can load the tokenizer, else tokenizers; or one of the two. add: what stands around
    each document, "eos", "bos", "both" or "none". bos, eos: these tokens by name; without, the usual name that the
    tokenizer has. special_strings: a special token's string inside a text is that token ("keep"), or ordinary text
    ("text"). formats: by source, what its documents are: "text" (default), "chat" (a column of messages, in
    chat_format) or "tokens" (a column of lists of ids, where loss_mask names a column beside it). max_quarantined: how
    many documents that bring the encoder down may be left out; 0.001: a share. quarantine: documents ("partition:row")
    that may be left out beside these.
    """

    tokenizer: str
    encoder: str = "auto"
    add: str = "eos"
    bos: str | None = None
    eos: str | None = None
    special_strings: str = "keep"
    tokenizer_version: str | int | None = None
    formats: dict[str, str] = field(default_factory=dict)
    chat_format: str = "simple"
    messages: str = "messages"
    tokens: str = "tokens"
    loss_mask: str | None = None
    max_quarantined: int | float = 0
    quarantine: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, value, known in (
            ("encoder", self.encoder, ENCODERS),
            ("special_strings", self.special_strings, SPECIAL_STRINGS),
            *((f"formats.{source}", kind, KINDS) for source, kind in self.formats.items()),
        ):
            if value not in known and not (key == "encoder" and is_custom(self.tokenizer)):
                raise RecipeError(f"tokenize.{key} {value!r} is not known; {suggestion(value, known)}")
        chat_format(self.chat_format)
        if self.tokenizer_version is not None and not is_custom(self.tokenizer):
            raise RecipeError(
                "tokenize.tokenizer_version is for a tokenizer of one's own; a file is known by its content"
            )
        check_limit(self.max_quarantined)


# --- plan


def plan(step: Step) -> Plan:
    """Settle the contract, then encode all partitions."""
    (clean,) = step.inputs_of("consolidate")
    config = config_of({"tokenizer": "", **step.parameters}, Config)  # a file enters the parameters by its hash alone
    wanted = {key: getattr(config, key) for key in CHOICES}
    task = Task("contract", f"{__name__}:settle_contract", wanted)
    (settled,) = yield Phase("contract", (task,), shared={"tokenizer": _tokenizer_file(step)})
    contract = settled.details["contract"]
    _check_formats(config, clean.manifest.partitions)
    entries = [entry for entry in _partitions(clean.directory, clean.manifest.partitions) if entry["rows"]]
    groups = neighbours([entry["text_bytes"] for entry in entries])
    results = yield Phase(
        "encode",
        tuple(_task(entries[group.start : group.stop]) for group in groups),
        shared={"contract": contract, "config": spelled_out(config)},
        preloads=_preloads(step),
        memory_per_input_byte=MEMORY[msgspec.convert(contract, Contract).dtype.name],
        tolerance=tolerance_of(step),
    )
    return _output([entry for result in results for entry in result.details["shards"]], entries, contract)


def _check_formats(config: Config, partitions: list[Partition]) -> None:
    sources = list(dict.fromkeys(partition.source for partition in partitions))
    for source in config.formats:
        if source not in sources:
            raise RecipeError(f"tokenize.formats: no source {source!r}; {suggestion(source, sources)}")


def _tokenizer_file(step: Step) -> bytes:
    """The tokenizer.json's bytes, checked against what the step was planned with."""
    named = step.parameters.get("tokenizer") or ""
    if is_custom(named):
        return describe(named, step.parameters.get("tokenizer_version"))
    for trained in step.inputs_of(train_stage.NAME):
        return urls.read_bytes(urls.join(trained.directory, TOKENIZER_FILE))
    path = step.operations["tokenizer_path"]
    data = urls.read_bytes(path)
    found, wanted = hashlib.sha256(data).hexdigest(), step.parameters["tokenizer_sha256"]
    if found != wanted:
        raise TokenizerError(f"{path} has sha256 {found}, the step was planned with {wanted}: run the recipe again")
    return data


def _preloads(step: Step) -> tuple[Preload, ...]:
    tokenizer = urls.join(step.directory, TOKENIZER_FILE)
    return (Preload(__name__), Preload("datakit.tokenize.encoders.tokenizer", LOAD, (tokenizer,)))


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
    return Task(key, f"{__name__}:encode", {"partitions": entries}, size, bisect_argument="partitions")


def _output(shards: list[dict[str, Any]], entries: list[dict[str, Any]], contract: dict[str, Any]) -> Output:
    if not shards:
        raise EmptyStageError("tokenize has no document to encode: the consolidated dataset is empty")
    for shard, entry in zip(shards, entries, strict=True):
        if (shard["path"], shard["rows"] + shard["quarantined"]) != (entry["shard"], entry["rows"]):
            raise CorruptError(f"{entry['dataset']} has {entry['rows']} documents, its shard {shard['rows']}")
    typed = msgspec.convert(contract, Contract)
    lengths = sum((Counter(shard["lengths"]) for shard in shards), Counter[str]())
    masked = any(shard["files"]["loss_mask"] for shard in shards)
    details = CacheDetails(
        format=FORMAT,
        contract=typed,
        array=array_form(typed.dtype),
        shards=[msgspec.convert(shard["files"], ShardFiles) for shard in shards],
        sources=_sums(shards),
        lengths={power: lengths[power] for power in sorted(lengths, key=int)},
        frequent=_frequent(shards),
        loss_mask=array_form(np.dtype(np.uint8)) if masked else None,
    )
    keys = ("path", "source", "rows", "bytes", "xxh3", "text_bytes", "tokens", "first_id", "last_id")
    return Output(
        partitions=[Partition(**{key: shard[key] for key in keys}) for shard in shards],
        schema=pa.schema([("token", pa.from_numpy_dtype(typed.dtype))]),
        details=msgspec.to_builtins(details),
    )


def _sums(shards: list[dict[str, Any]]) -> dict[str, SourceSums]:
    by_source: dict[str, list[dict[str, Any]]] = {}
    for shard in shards:
        by_source.setdefault(shard["source"], []).append(shard)
    return {source: _sums_of(mine) for source, mine in by_source.items()}


def _sums_of(shards: list[dict[str, Any]]) -> SourceSums:
    rows, tokens, size = (sum(shard[key] for shard in shards) for key in ("rows", "tokens", "text_bytes"))
    masks = [shard["files"]["loss_mask"] for shard in shards]
    targets = None
    if any(masks):
        targets = sum(mask["sum"] if mask else shard["tokens"] for mask, shard in zip(masks, shards, strict=True))
    return SourceSums(len(shards), rows, tokens, size, targets, _frequent(shards))


def _frequent(shards: list[dict[str, Any]]) -> list[tuple[int, int]]:
    counts = sum((Counter(shard["frequent"]) for shard in shards), Counter[str]())
    ordered = sorted(((int(token), count) for token, count in counts.items()), key=lambda pair: (-pair[1], pair[0]))
    return ordered[:FREQUENT]


# --- task functions


def settle_contract(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write tokenizer.json beside the cache and say what its tokens will mean."""
    data, url = shared["tokenizer"], urls.join(context.step_directory, TOKENIZER_FILE)
    tokenizer = parse(data, url)
    encoder = tokenizer.encoder(arguments["encoder"], arguments["special_strings"])
    _hold_threads(tokenizer, encoder, context)
    ends = (arguments[key] for key in ("add", "bos", "eos"))
    contract = make_contract(tokenizer, encoder, *ends, special_strings=arguments["special_strings"])
    committed = atomic.commit_bytes(data, url)
    file = OutputFile(TOKENIZER_FILE, committed.bytes, committed.xxh3)
    return TaskResult((file,), details={"contract": msgspec.to_builtins(contract)})


def encode(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the shards of some partitions."""
    contract = msgspec.convert(shared["contract"], Contract)
    config = msgspec.convert(shared["config"], Config)
    tokenizer: AnyTokenizer = preloaded(LOAD, urls.join(context.step_directory, TOKENIZER_FILE))
    contract.require(tokenizer.sha256, context.step_directory)
    name = contract.encoder if contract.encoder in ENCODERS else "auto"
    encoding = Encoding.of(tokenizer, name, config.special_strings, contract)
    _hold_threads(tokenizer, encoding.texts.encoder, context)
    counters, outputs, shards, left_out = Counter[str](), [], [], []
    for entry in arguments["partitions"]:
        check = encoding.verification(entry["rows"], entry["text_bytes"], entry["dataset"])
        in_hand = InHand(entry["name"], context)
        documents = encoded_documents(entry, config, encoding, check, in_hand)
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


def _hold_threads(tokenizer: AnyTokenizer, encoder: Encoder, context: TaskContext) -> None:
    """Both libraries make their threads now, no more than the task has CPUs."""
    for each in (encoder, tokenizer.reference_encoder()):
        if each is not None:
            hold_threads(each, context.cpus)


def _described(entry: dict[str, Any], shard: TokenShard, in_hand: InHand) -> dict[str, Any]:
    data = shard.data or OutputFile("", 0, EMPTY_XXH3)
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
        "frequent": shard.frequent,
        "files": msgspec.to_builtins(shard.files),
    }


def _counts(entry: dict[str, Any], shard: TokenShard, check: Verification | None, in_hand: InHand) -> dict[str, int]:
    return {
        "tokenize/documents": shard.documents.rows,
        "tokenize/tokens": shard.tokens,
        "tokenize/text_bytes": entry["text_bytes"] - in_hand.text_bytes,
        "tokenize/quarantined": len(in_hand.left_out),
        "tokenize/verified_documents": check.documents if check else 0,
        "tokenize/verified_bytes": check.text_bytes if check else 0,
    }
