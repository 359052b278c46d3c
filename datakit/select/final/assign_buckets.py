"""Writes the lists of document buckets (the format is defined in `storage/selection/buckets.py`).

Cost: reading the ids, and the attributes that the buckets name. Memory: one row group.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.conditions.applying import applying
from datakit.conditions.decisions import decide
from datakit.conditions.expressions import Conditions
from datakit.conditions.phase_data import ID_BYTES, Shared, Work
from datakit.conditions.records import read_records
from datakit.engine.task import OutputFile, TaskContext, TaskResult
from datakit.storage import urls
from datakit.storage.parquet import ShardWriter
from datakit.storage.selection.buckets import REST, SCHEMA, bucket_path


class BucketCounts(msgspec.Struct, frozen=True):
    """The documents of a bucket. applies: the documents to which its conditions apply, including those that an earlier
    bucket gets. documents: those that it gets. missing: those for which it could not be decided.
    """

    documents: int = 0
    applies: int = 0
    missing: int = 0

    def __add__(self, other: BucketCounts) -> BucketCounts:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return BucketCounts(*(mine + yours for mine, yours in pairs))


@dataclass(frozen=True)
class Assigned:
    """The lists of one partition. counts: by bucket, REST among them."""

    source: str
    files: list[OutputFile]
    counts: dict[str, BucketCounts]


def assign(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the lists of all buckets of some partitions."""
    common, done, records = msgspec.convert(shared["conditions"], Shared), list[Assigned](), 0
    conditions = Conditions(common.rules, shared["edits"])
    for work in msgspec.convert(arguments["partitions"], list[Work]):
        done.append(_assign_one(work, common, conditions, context))
        records += work.rows
        context.report(records, records * ID_BYTES)
    outputs = tuple(file for one in done for file in one.files)
    details = {"partitions": msgspec.to_builtins(done)}
    return TaskResult(outputs, {}, details, records=records, bytes_read=records * ID_BYTES)


def _assign_one(work: Work, shared: Shared, conditions: Conditions, context: TaskContext) -> Assigned:
    source, rules = work.part.source, shared.rules
    mine = [number for number, rule in enumerate(rules) if not rule.sources or source in rule.sources]
    counts = {name: BucketCounts() for name in (*(rules[number].name for number in mine), REST)}
    paths = {number: bucket_path(source, rules[number].name, urls.name(work.output)) for number in mine}
    with ExitStack() as stack:
        writers = {
            number: stack.enter_context(ShardWriter(urls.join(context.step_directory, path), SCHEMA))
            for number, path in paths.items()
        }
        for group in read_records(work.part, conditions.wanted, shared.types):
            answers = conditions.answers(group.records, work.part.dataset)
            applies, missing = applying(group, answers, work, shared)
            decisive, ids = decide(rules, applies).decisive, group.ids.combine_chunks()
            for number, writer in writers.items():
                inside = np.flatnonzero(decisive == number)
                rows = pa.array(group.rows[inside].astype(np.uint64))
                writer.write(pa.Table.from_arrays([ids.take(pa.array(inside)), rows], schema=SCHEMA))
                name, here = rules[number].name, (applies[number].sum(), missing[number].sum())
                counts[name] = counts[name] + BucketCounts(len(inside), *map(int, here))
            counts[REST] = counts[REST] + BucketCounts(int((decisive < 0).sum()))
    infos = {paths[number]: writer.info for number, writer in writers.items()}
    files = [OutputFile(path, info.bytes, info.xxh3, info.rows) for path, info in infos.items()]
    return Assigned(source, files, counts)
