"""Implements the tasks of the tokenize stage, and computes the step's counters from the shards that were written. One
task takes over the tokenizer. The others encode partitions into shards or, if a partition is large, into ranges of
documents, from which further tasks make its shard.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import closing
from typing import Any

import msgspec

from datakit.cache.contract import Contract
from datakit.cache.layout import TOKENIZER_FILE
from datakit.cache.writer import write_shard
from datakit.cache.written_shards import WrittenShard
from datakit.engine.task import OutputFile, TaskContext, TaskResult
from datakit.errors import TokenizerError
from datakit.storage import atomic, urls
from datakit.tokenize.config import Config
from datakit.tokenize.document_ranges import EncodedRange, Part, read_ranges, write_range
from datakit.tokenize.encode_documents import Encoding, PartitionToEncode, encoded_documents
from datakit.tokenize.encoders.custom import code_of
from datakit.tokenize.encoders.preloaded_tokenizer import limit_encoders, preloaded_tokenizer
from datakit.tokenize.encoders.tokenizer import ENCODERS
from datakit.tokenize.guarded_batches import PartitionGuard
from datakit.tokenize.reference_check import Verification


def take_tokenizer(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write a copy of the contract's tokenizer.json into the cache's directory, and return the version of the encoder.
    Raises TokenizerError if the copy differs from the file that the contract names, or if the encoder gives the
    contract's sample strings other ids: its library may be newer than that with which the contract was made.
    """
    encoding = _encoding(shared, context)
    contract, encoder, place = encoding.contract, encoding.texts.encoder, shared["tokenizer"]
    ids, lengths = encoder.encode_batch([golden.text for golden in contract.golden])
    ends = lengths.cumsum().tolist()
    for golden, start, end in zip(contract.golden, [0, *ends], ends, strict=False):
        if ids[start:end].tolist() != golden.ids:
            raise TokenizerError(
                f"{encoder.name} {encoder.version} encodes the string {golden.text!r} differently from version "
                f"{contract.encoder_version}, with which {urls.parent(place)} was made; install that version, or "
                "remove this directory and run again"
            )
    data = urls.read_bytes(place)
    contract.require(hashlib.sha256(data).hexdigest(), urls.parent(place))
    committed = atomic.commit_bytes(data, urls.join(context.step_directory, TOKENIZER_FILE))
    file = OutputFile(TOKENIZER_FILE, committed.bytes, committed.xxh3)
    return TaskResult((file,), details={"encoder_version": encoder.version})


def encode(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    with closing(_encoding(shared, context)) as encoding:
        return _encode(arguments, encoding, msgspec.convert(shared["config"], Config), context)


def _encode(arguments: dict[str, Any], encoding: Encoding, config: Config, context: TaskContext) -> TaskResult:
    counters, outputs, shards, quarantined = Counter[str](), [], [], []
    for partition in msgspec.convert(arguments["partitions"], list[PartitionToEncode]):
        check = encoding.verification(partition.rows, partition.text_bytes, partition.url)
        guard = PartitionGuard(partition.name, context)
        documents = encoded_documents(partition, config, encoding, check, guard, counters=counters)
        shard, files = write_shard(partition.source, partition.shard, documents, encoding.contract, context)
        shard = msgspec.structs.replace(
            shard, text_bytes=guard.text_bytes, quarantined=len(guard.quarantined), bucket=partition.bucket
        )
        outputs += files
        shards.append(shard)
        counters.update(_counts(shard))
        counters.update(_verified(check))
        quarantined += guard.quarantined
        context.report(counters["tokenize/documents"], counters["tokenize/text_bytes"])
    details = {"shards": msgspec.to_builtins(shards)}
    done = (counters["tokenize/documents"], counters["tokenize/text_bytes"])
    return TaskResult(tuple(outputs), dict(counters), details, tuple(quarantined), *done)


def encode_range(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Encode a range of a partition's documents into a file of the exchange, from which `join` makes the shard. The
    documents are counted by `join`.
    """
    with closing(_encoding(shared, context)) as encoding:
        return _encode_range(arguments, encoding, msgspec.convert(shared["config"], Config), context)


def _encode_range(arguments: dict[str, Any], encoding: Encoding, config: Config, context: TaskContext) -> TaskResult:
    partition, part = (
        msgspec.convert(arguments["partition"], PartitionToEncode),
        msgspec.convert(arguments["part"], Part),
    )
    check = encoding.verification(partition.rows // part.count, partition.text_bytes // part.count, partition.url)
    guard, counters = PartitionGuard(partition.name, context), Counter[str]()
    batches = encoded_documents(partition, config, encoding, check, guard, counters=counters, part=part)
    url = urls.join(context.step_directory, arguments["output"])
    committed, documents, tokens = write_range(url, batches, encoding.contract.dtype)
    counters.update(_verified(check))
    made = EncodedRange(arguments["output"], documents, tokens, guard.text_bytes, len(guard.quarantined))
    file = OutputFile(made.path, committed.bytes, committed.xxh3, documents)
    details = {"range": msgspec.to_builtins(made)}
    return TaskResult((file,), dict(counters), details, tuple(guard.quarantined), documents, guard.text_bytes)


def join(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the shard of a partition whose ranges have been encoded."""
    contract = msgspec.convert(shared["contract"], Contract)
    partition = msgspec.convert(arguments["partition"], PartitionToEncode)
    ranges = msgspec.convert(arguments["ranges"], list[EncodedRange])
    documents = read_ranges(context.step_directory, ranges)
    shard, files = write_shard(partition.source, partition.shard, documents, contract, context)
    text_bytes, left_out = sum(one.text_bytes for one in ranges), sum(one.quarantined for one in ranges)
    shard = msgspec.structs.replace(shard, text_bytes=text_bytes, quarantined=left_out, bucket=partition.bucket)
    details = {"shards": [msgspec.to_builtins(shard)]}
    return TaskResult(files, _counts(shard), details, records=shard.rows, bytes_read=text_bytes)


def _encoding(shared: dict[str, Any], context: TaskContext) -> Encoding:
    """Return the encoders of the preloaded tokenizer. They use the library that the contract names."""
    contract, place = msgspec.convert(shared["contract"], Contract), shared["tokenizer"]
    config = msgspec.convert(shared["config"], Config)
    tokenizer = preloaded_tokenizer(place, code_of(config.tokenizer))
    contract.require(tokenizer.sha256, urls.parent(place))
    name = contract.encoder if contract.encoder in ENCODERS else "auto"
    encoding = Encoding.of(tokenizer, name, config, contract)
    limit_encoders(tokenizer, encoding.texts.encoder, context)
    return encoding


def _counts(shard: WrittenShard) -> dict[str, int]:
    return {
        "tokenize/documents": shard.rows,
        "tokenize/tokens": shard.tokens,
        "tokenize/text_bytes": shard.text_bytes or 0,
        "tokenize/quarantined": shard.quarantined,
    }


def _verified(check: Verification | None) -> dict[str, int]:
    split = check.split if check else None
    return {
        "tokenize/verified_documents": check.documents if check else 0,
        "tokenize/verified_bytes": check.text_bytes if check else 0,
        **({"tokenize/verified_split_documents": split.documents} if split and split.documents else {}),
    }
