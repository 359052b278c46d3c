"""Implements the tasks of the tokenize stage (one makes the contract, the others encode partitions into shards), and
computes the step's counters from the shards that were written.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from datakit.cache.contract import Contract
from datakit.cache.layout import TOKENIZER_FILE
from datakit.cache.writer import write_shard
from datakit.cache.written_shards import WrittenShard
from datakit.engine.task import OutputFile, TaskContext, TaskResult
from datakit.engine.worker.preloaded_values import preloaded
from datakit.storage import atomic, urls
from datakit.tokenize.config import Config
from datakit.tokenize.encode_documents import Encoding, PartitionToEncode, encoded_documents
from datakit.tokenize.encoders.base import Encoder
from datakit.tokenize.encoders.custom import code_of
from datakit.tokenize.encoders.tokenizer import ENCODERS, limit_threads, parse
from datakit.tokenize.guarded_batches import PartitionGuard
from datakit.tokenize.make_contract import AnyTokenizer, make_contract
from datakit.tokenize.reference_check import Verification

LOAD = "datakit.tokenize.encoders.tokenizer:load"


def settle_contract(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write tokenizer.json into the cache's directory, and return the cache's contract."""
    data, url = shared["tokenizer"], urls.join(context.step_directory, TOKENIZER_FILE)
    tokenizer = parse(data, url, shared.get("code", ""))
    encoder = tokenizer.encoder(arguments["encoder"], arguments["special_strings"])
    _limit_threads(tokenizer, encoder, context)
    ends = (arguments[key] for key in ("add", "bos", "eos"))
    contract = make_contract(tokenizer, encoder, *ends, special_strings=arguments["special_strings"])
    committed = atomic.commit_bytes(data, url)
    file = OutputFile(TOKENIZER_FILE, committed.bytes, committed.xxh3)
    return TaskResult((file,), details={"contract": msgspec.to_builtins(contract)})


def encode(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    contract = msgspec.convert(shared["contract"], Contract)
    config = msgspec.convert(shared["config"], Config)
    encoding = _encoding(contract, config, context)
    counters, outputs, shards, quarantined = Counter[str](), [], [], []
    for partition in msgspec.convert(arguments["partitions"], list[PartitionToEncode]):
        check = encoding.verification(partition.rows, partition.text_bytes, partition.url)
        guard = PartitionGuard(partition.name, context)
        documents = encoded_documents(partition, config, encoding, check, guard, counters=counters)
        shard, files = write_shard(partition.source, partition.shard, documents, contract, context)
        shard = msgspec.structs.replace(shard, text_bytes=guard.text_bytes, quarantined=len(guard.quarantined))
        outputs += files
        shards.append(shard)
        counters.update(_counts(shard, check))
        quarantined += guard.quarantined
        context.report(counters["tokenize/documents"], counters["tokenize/text_bytes"])
    details = {"shards": msgspec.to_builtins(shards)}
    done = (counters["tokenize/documents"], counters["tokenize/text_bytes"])
    return TaskResult(tuple(outputs), dict(counters), details, tuple(quarantined), *done)


def _encoding(contract: Contract, config: Config, context: TaskContext) -> Encoding:
    """Return the encoders of the preloaded tokenizer. They use the library that the contract names."""
    place = urls.join(context.step_directory, TOKENIZER_FILE)
    tokenizer: AnyTokenizer = preloaded(LOAD, place, code_of(config.tokenizer))
    contract.require(tokenizer.sha256, context.step_directory)
    name = contract.encoder if contract.encoder in ENCODERS else "auto"
    encoding = Encoding.of(tokenizer, name, config, contract)
    _limit_threads(tokenizer, encoding.texts.encoder, context)
    return encoding


def _limit_threads(tokenizer: AnyTokenizer, encoder: Encoder, context: TaskContext) -> None:
    """Make the encoder and the reference encoder each start their threads now, at most as many as the task has CPUs."""
    for each in (encoder, tokenizer.reference_encoder()):
        if each is not None:
            limit_threads(each, context.cpus)


def _counts(shard: WrittenShard, check: Verification | None) -> dict[str, int]:
    split = check.split if check else None
    return {
        "tokenize/documents": shard.rows,
        "tokenize/tokens": shard.tokens,
        "tokenize/text_bytes": shard.text_bytes or 0,
        "tokenize/quarantined": shard.quarantined,
        "tokenize/verified_documents": check.documents if check else 0,
        "tokenize/verified_bytes": check.text_bytes if check else 0,
        **({"tokenize/verified_split_documents": split.documents} if split and split.documents else {}),
    }
