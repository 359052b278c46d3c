"""Implements the packing stage: counts the sequences in each block of a packed mixture component, and checks the total
number of tokens. From the document lengths alone, each task counts the sequences in a range of blocks. Each block is
packed independently, and the ranges have fixed boundaries, so the output is the same for any number of workers. The
last task concatenates the parts into one file of 4 bytes per block (4 MB for a trillion tokens), which is read in one
request. Counting takes about 0.7 us per document. A task holds the document lengths of a few shards in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.engine.task import Output, OutputFile, Phase, Plan, Preload, Step, Task, TaskContext, TaskResult
from datakit.errors import CorruptError, TaskError
from datakit.loader.mixture.config import Component, SimulatedEpochs
from datakit.loader.mixture.packing import Counters, Packing, count_blocks
from datakit.loader.mixture.packing_counts import COUNTS_FILE, CountParameters, decode_counts, encode_counts
from datakit.loader.mixture.validation_split import training_source
from datakit.loader.sources.cache_source import open_source
from datakit.loader.sources.token_source import BlockAxis, TokenSource
from datakit.storage import atomic, urls
from datakit.storage.manifest import Partition

BLOCKS_A_TASK = 256  # 268 million tokens if a block has 2^20 tokens
BLOCKS_A_REPORT = 16  # number of blocks counted between two heartbeats
SCHEMA = pa.schema([("sequences", pa.int32())])
PRELOADS = (Preload(__name__),)


@dataclass(frozen=True)
class PackedTokens:
    """The location of a packed component's tokens. The step holds these fields in `Step.operations`, which does not
    affect the fingerprint.
    """

    name: str
    cache: str
    source: str | None
    validation_tokens: int
    simulate: list[int] | None  # the fields of a `SimulatedEpochs`: [run_tokens, target_tokens]


def plan(step: Step) -> Plan:
    """Plan tasks that count the sequences in ranges of blocks, and one task that joins the counts.

    The step's parameters are the fields of a `CountParameters`, and its operations are the fields of a `PackedTokens`.
    """
    parameters = msgspec.convert(step.parameters, CountParameters)
    axis = BlockAxis(parameters.tokens, parameters.block_tokens)
    tasks = tuple(_task(first, min(first + BLOCKS_A_TASK, axis.count)) for first in range(0, axis.count, BLOCKS_A_TASK))
    shared = {"parameters": step.parameters, "component": step.operations}
    counted = yield Phase("count", tasks, shared, PRELOADS, memory_per_input_byte=0.0)
    _require_all_tokens(step, parameters, counted)
    parts = [output.path for result in counted for output in result.outputs]
    size = sum(output.bytes for result in counted for output in result.outputs)
    (joined,) = yield Phase("join", (Task("join", f"{__name__}:join_task", {"parts": parts}, size),), preloads=PRELOADS)
    (file,) = joined.outputs
    sequences = sum(result.details["sequences"] for result in counted)
    partition = Partition(file.path, step.dataset, file.rows, file.bytes, file.xxh3)
    return Output([partition], SCHEMA, details={"sequences": sequences})


def _task(first: int, last: int) -> Task:
    return Task(f"{first:08d}", f"{__name__}:count_task", {"first": first, "last": last}, input_bytes=last - first)


def _require_all_tokens(step: Step, parameters: CountParameters, counted: Sequence[TaskResult]) -> None:
    """Raise CorruptError unless the token counts of all blocks add up to the number of tokens in the source: each token
    is in exactly one block.
    """
    seen = sum(result.counters["packing/tokens"] for result in counted)
    if seen != parameters.tokens:
        raise CorruptError(
            f"{step.stage}: the documents in all blocks have {seen:,} tokens in total, but the source has "
            f"{parameters.tokens:,}; check the cache with `datakit validate {step.operations['cache']}`"
        )


def count_task(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    parameters = msgspec.convert(shared["parameters"], CountParameters)
    source = _source(msgspec.convert(shared["component"], PackedTokens), parameters.source)
    axis = BlockAxis(source.tokens, parameters.block_tokens)
    packing = Packing(parameters.too_long, parameters.max_documents)
    parts, counters = [], Counters()
    for first in range(arguments["first"], arguments["last"], BLOCKS_A_REPORT):
        blocks = range(first, min(first + BLOCKS_A_REPORT, arguments["last"]))
        table = count_blocks(source, axis, blocks, parameters.length, packing)
        parts.append(table.sequences)
        counters += table.counters
        context.report(counters.documents, 0)
    counts = np.concatenate(parts)
    file = _commit(counts, f"exchange/count/{arguments['first']:08d}.npy", context)
    counted = {f"packing/{name}": getattr(counters, name) for name in counters.__dataclass_fields__}
    return TaskResult((file,), counted, {"sequences": int(counts.sum())}, records=counters.documents)


def join_task(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    urls_of_parts = (urls.join(context.step_directory, path) for path in arguments["parts"])
    counts = np.concatenate([decode_counts(urls.read_bytes(url)) for url in urls_of_parts])
    return TaskResult((_commit(counts, COUNTS_FILE, context),))


def _source(tokens: PackedTokens, identity: str) -> TokenSource:
    """Open the token source, without the documents held out for validation. Raises TaskError if the tokens have changed
    since the step was planned.
    """
    opened = Component(open_source(tokens.cache, tokens.source), validation_tokens=tokens.validation_tokens)
    simulate = None if tokens.simulate is None else SimulatedEpochs(*tokens.simulate)
    source = training_source(opened, tokens.name, simulate)
    if source.identity != identity:
        raise TaskError(f"{tokens.cache} has changed since this step was planned; run `datakit mixture pack` again")
    return source


def _commit(counts: np.ndarray, path: str, context: TaskContext) -> OutputFile:
    committed = atomic.commit_bytes(encode_counts(counts), urls.join(context.step_directory, path))
    return OutputFile(path, committed.bytes, committed.xxh3, len(counts))
