"""Simulates the tasks of the stages contract and tokenize."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from datakit.cache.contract import Contract
from datakit.cache.layout import (
    CHUNK_TOKENS,
    DATA_FILE,
    DOCUMENTS_SUFFIX,
    FREQUENT_IN_SHARD,
    METADATA_FILE,
    TOKENIZER_FILE,
    ShardFiles,
)
from datakit.cache.lengths import LENGTHS_SUFFIX
from datakit.cache.written_shards import WrittenShard
from datakit.engine.task import OutputFile, Task, TaskResult
from datakit.pipeline.simulate.corpus import share
from datakit.pipeline.simulate.effects import CHECKSUM, Effect, PhaseOf, Run, parquet_reads
from datakit.tokenize.contract_stage import given_tokenizer
from datakit.tokenize.document_ranges import EncodedRange

DOCUMENT_ROW_BYTES = 24  # bytes of a document in docs.parquet
METADATA_BYTES = 900  # size of a zarr.json
ENCODED_DOCUMENT_BYTES = 48  # bytes of a document in the file of a range, beside its tokens


def write_tokenizer(about: PhaseOf) -> Run:
    """Simulate the copy of the given tokenizer in the contract step."""

    def run(task: Task) -> Effect:
        file = OutputFile(TOKENIZER_FILE, len(about.phase.shared["tokenizer"]), CHECKSUM)
        return Effect(TaskResult((file,)), writes=1)

    return run


def settle_contract(about: PhaseOf) -> Run:
    """Simulate the contract: only the size of the vocabulary matters, which decides the type of the tokens."""

    def run(task: Task) -> Effect:
        data = given_tokenizer(about.step)
        contract = Contract(CHECKSUM * 2, "fastokens", vocabulary_size(data, about.corpus.vocabulary), None, None, [])
        details = {"contract": msgspec.to_builtins(contract)}
        return Effect(TaskResult((), {"contract/vocabulary": contract.vocabulary_size}, details), 1, 0, len(data))

    return run


def take_tokenizer(about: PhaseOf) -> Run:
    """Simulate the copy of the contract's tokenizer."""

    def run(task: Task) -> Effect:
        (settled,) = about.step.inputs_of("contract")
        (file,) = settled.manifest.partitions
        copied = OutputFile(TOKENIZER_FILE, file.bytes, CHECKSUM)
        return Effect(TaskResult((copied,), details={"encoder_version": ""}), 1, 1, file.bytes)

    return run


def vocabulary_size(data: bytes, usual: int) -> int:
    """Return the vocabulary size of a tokenizer.json, or `usual` if it has another form."""
    try:
        found = msgspec.json.decode(data)
        numbers = [entry["id"] for entry in found.get("added_tokens", ())]
        vocabulary = found["model"]["vocab"]
        numbers += vocabulary.values() if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
        return max(numbers) + 1
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return usual


Written = tuple[WrittenShard, tuple[OutputFile, ...]]


def _shards(about: PhaseOf) -> Callable[[dict[str, Any]], Written]:
    """Return a function that returns the shard of a partition, and its files."""
    contract = msgspec.convert(about.phase.shared["contract"], Contract)
    width = contract.dtype.itemsize * (0.5 if contract.dtype.itemsize > 2 else 1.0)  # uint32 is compressed
    frequent = {str(token): 1000 for token in range(min(FREQUENT_IN_SHARD, contract.vocabulary_size))}
    lengths = {str(1 << power): 1 for power in range(4, 18)}

    def one(part: dict[str, Any]) -> Written:
        rows, path = part["rows"], part["shard"]
        tokens = _tokens(about, part)
        listed = 1000 + DOCUMENT_ROW_BYTES * rows
        chunks = -(-tokens // CHUNK_TOKENS)
        size = int(tokens * width) + 16 * chunks
        shard = WrittenShard(
            part["source"], part["text_bytes"], "0" * 32, "f" * 32, 0, path, rows, tokens, size, CHECKSUM, lengths,
            frequent, ShardFiles(METADATA_BYTES, CHECKSUM, listed, CHECKSUM, CHECKSUM), part["bucket"],
        )  # fmt: skip
        sizes = {f"/{DATA_FILE}": size, LENGTHS_SUFFIX: 4 * rows, DOCUMENTS_SUFFIX: listed,
                 f"/{METADATA_FILE}": METADATA_BYTES}  # fmt: skip
        return shard, tuple(OutputFile(path + name, bytes, CHECKSUM) for name, bytes in sizes.items())

    return one


def _tokens(about: PhaseOf, part: dict[str, Any]) -> int:
    return int(part["text_bytes"] / about.corpus.token_bytes) + part["rows"]


def _counters(shards: Sequence[WrittenShard]) -> dict[str, int]:
    return {
        "tokenize/documents": sum(shard.rows for shard in shards),
        "tokenize/tokens": sum(shard.tokens for shard in shards),
        "tokenize/text_bytes": sum(shard.text_bytes or 0 for shard in shards),
        "tokenize/quarantined": 0,
    }


def encode(about: PhaseOf) -> Run:
    """Simulate the encoding of some partitions."""
    corpus, one = about.corpus, _shards(about)

    def run(task: Task) -> Effect:
        parts = task.arguments["partitions"]
        shards, files = zip(*map(one, parts), strict=True)
        outputs = tuple(file for group in files for file in group)
        counters = {
            **_counters(shards),
            "tokenize/verified_documents": len(shards),
            "tokenize/verified_bytes": corpus.document_bytes * len(shards),
        }
        read = sum(int(part["text_bytes"] * corpus.normalized) for part in parts)
        reads = sum(parquet_reads(int(p["text_bytes"] * corpus.normalized), p["text_bytes"]) for p in parts)
        reads += sum(parquet_reads(0) for p in parts if p["leaving"])
        done = counters["tokenize/documents"], counters["tokenize/text_bytes"]
        result = TaskResult(outputs, counters, {"shards": msgspec.to_builtins(shards)}, (), *done)
        return Effect(result, reads, len(outputs), read)

    return run


def encode_range(about: PhaseOf) -> Run:
    """Simulate the encoding of a range of a partition."""
    corpus, width = about.corpus, msgspec.convert(about.phase.shared["contract"], Contract).dtype.itemsize

    def run(task: Task) -> Effect:
        part, count, number = (
            task.arguments["partition"],
            task.arguments["part"]["count"],
            task.arguments["part"]["number"],
        )
        rows, tokens = share(part["rows"], number, count), share(_tokens(about, part), number, count)
        text, path = share(part["text_bytes"], number, count), task.arguments["output"]
        file = OutputFile(path, tokens * width + ENCODED_DOCUMENT_BYTES * rows, CHECKSUM, rows)
        counters = {"tokenize/verified_documents": 1, "tokenize/verified_bytes": corpus.document_bytes}
        made = EncodedRange(path, rows, tokens, text, 0)
        result = TaskResult((file,), counters, {"range": msgspec.to_builtins(made)}, (), rows, text)
        read = int(text * corpus.normalized)
        return Effect(result, parquet_reads(read, text), 1, read, file.bytes)

    return run


def join(about: PhaseOf) -> Run:
    """Simulate the making of a shard from its ranges."""
    one = _shards(about)

    def run(task: Task) -> Effect:
        shard, files = one(task.arguments["partition"])
        details, done = {"shards": [msgspec.to_builtins(shard)]}, (shard.rows, shard.text_bytes or 0)
        result = TaskResult(files, _counters([shard]), details, (), *done)
        return Effect(result, len(task.arguments["ranges"]), len(files), task.input_bytes)

    return run
