"""Packing: how many sequences each block of a packed component gives, as a step of its own.

Ranges of blocks are counted in isolated children, from the documents' lengths alone; no token is read. A block is
packed by itself, so the ranges are independent, and they are cut at fixed places, so the output is the same for any
number of workers. The last task lays the parts end to end: 4 bytes a block, 4 MB for a trillion tokens, one read for
whoever opens them.

Cost: about 0.7 us a document. Memory: the document lists of a few shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.engine.task import Output, OutputFile, Phase, Plan, Preload, Step, Task, TaskContext, TaskResult
from datakit.errors import CorruptError, TaskError
from datakit.loader.mixture.config import Component, SimulatedEpochs
from datakit.loader.mixture.packing import Counters, Packing, count_blocks
from datakit.loader.mixture.packing_counts import COUNTS_FILE, decode_counts, encode_counts
from datakit.loader.mixture.validation import training_source
from datakit.loader.sources.block_axis import BlockAxis
from datakit.loader.sources.cache_source import open_source
from datakit.loader.sources.token_source import TokenSource
from datakit.storage import atomic, urls
from datakit.storage.manifest import Partition

BLOCKS_A_TASK = 256  # 268 M tokens in blocks of 2^20
BLOCKS_A_REPORT = 16
SCHEMA = pa.schema([("sequences", pa.int32())])
PRELOADS = (Preload(__name__),)


# --- plan


def plan(step: Step) -> Plan:
    """Count ranges of blocks, then join the counts. `step.operations` says where the tokens are."""
    axis = BlockAxis(step.parameters["tokens"], step.parameters["block_tokens"])
    tasks = tuple(_task(first, min(first + BLOCKS_A_TASK, axis.count)) for first in range(0, axis.count, BLOCKS_A_TASK))
    shared = {"parameters": step.parameters, "component": step.operations}
    counted = yield Phase("count", tasks, shared, PRELOADS, memory_per_input_byte=0.0)
    _require_all_tokens(step, counted)
    parts = [output.path for result in counted for output in result.outputs]
    (joined,) = yield Phase("join", (Task("join", f"{__name__}:join_task", {"parts": parts}),), preloads=PRELOADS)
    (file,) = joined.outputs
    sequences = sum(result.details["sequences"] for result in counted)
    partition = Partition(file.path, step.dataset, file.rows, file.bytes, file.xxh3)
    return Output([partition], SCHEMA, details={"sequences": sequences})


def _task(first: int, last: int) -> Task:
    return Task(f"{first:08d}", f"{__name__}:count_task", {"first": first, "last": last}, input_bytes=last - first)


def _require_all_tokens(step: Step, counted: Sequence[TaskResult]) -> None:
    """Each token is owned by one block."""
    seen = sum(result.counters["packing/tokens"] for result in counted)
    if seen != step.parameters["tokens"]:
        raise CorruptError(
            f"{step.stage}: the blocks' documents hold {seen:,} tokens, the source {step.parameters['tokens']:,}; "
            f"check the cache with `datakit validate {step.operations['cache']}`"
        )


# --- task functions


def count_task(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """The counts of the blocks first..last-1."""
    parameters = shared["parameters"]
    source = _source(shared["component"], parameters["source"])
    axis = BlockAxis(source.tokens, parameters["block_tokens"])
    packing = Packing(parameters["too_long"], parameters["max_documents"])
    parts, counters = [], Counters()
    for first in range(arguments["first"], arguments["last"], BLOCKS_A_REPORT):
        blocks = range(first, min(first + BLOCKS_A_REPORT, arguments["last"]))
        table = count_blocks(source, axis, blocks, parameters["length"], packing)
        parts.append(table.sequences)
        counters += table.counters
        context.report(counters.documents, 0)
    counts = np.concatenate(parts)
    file = _commit(counts, f"exchange/count/{arguments['first']:08d}.npy", context)
    counted = {f"packing/{name}": getattr(counters, name) for name in counters.__dataclass_fields__}
    return TaskResult((file,), counted, {"sequences": int(counts.sum())}, records=counters.documents)


def join_task(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """All parts as one file."""
    parts = [decode_counts(urls.read_bytes(urls.join(context.step_directory, path))) for path in arguments["parts"]]
    return TaskResult((_commit(np.concatenate(parts), COUNTS_FILE, context),))


def _source(component: dict[str, Any], identity: str) -> TokenSource:
    """The tokens as training sees them, made again from what names them; they must be the same."""
    simulate = component["simulate"]
    source = training_source(
        Component(
            open_source(component["cache"], component["source"]), validation_tokens=component["validation_tokens"]
        ),
        component["name"],
        None if simulate is None else SimulatedEpochs(*simulate),
    )
    if source.identity != identity:
        raise TaskError(f"{component['cache']} holds other tokens than when this step was planned; plan it again")
    return source


def _commit(counts: np.ndarray, path: str, context: TaskContext) -> OutputFile:
    committed = atomic.commit_bytes(encode_counts(counts), urls.join(context.step_directory, path))
    return OutputFile(path, committed.bytes, committed.xxh3, len(counts))
