"""Applies the rules to partitions, writes the lists of the documents that leave, and counts what each rule did. The
format of a list is described in `stage.py`.

The texts of the row groups from which documents leave are read to count the bytes that leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.conditions.applying import applying
from datakit.conditions.config import Rule
from datakit.conditions.decisions import Decisions, decide, reasons
from datakit.conditions.expressions import Conditions
from datakit.conditions.phase_data import ID_BYTES, Applied, RuleCounts, Shared, Work
from datakit.conditions.records import RowGroup, read_records
from datakit.conditions.text_sizes import text_bytes
from datakit.engine.task import OutputFile, TaskContext, TaskResult
from datakit.errors import CorruptError
from datakit.rules.stage import DICTIONARY, SCHEMA
from datakit.storage import urls
from datakit.storage.manifest import Partition
from datakit.storage.parquet import ShardWriter
from datakit.storage.selection.leaving_rows import RULE


def apply(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the lists of some partitions."""
    common, written, records = msgspec.convert(shared, Shared), list[Applied](), 0
    conditions = Conditions(common.rules)
    for work in msgspec.convert(arguments["partitions"], list[Work]):
        written.append(_apply_one(work, common, conditions, context))
        records += work.rows
        context.report(records, records * ID_BYTES)
    outputs = tuple(
        OutputFile(part.path, part.bytes, part.xxh3, part.rows) for part in (one.partition for one in written)
    )
    leaving = sum(one.partition.rows for one in written)
    counters = {"rules/records_in": records, "rules/records_out": records - leaving}
    for number, rule in enumerate(common.rules):
        decided = sum(one.counts[number].decides for one in written)
        counters[f"rules/{rule.action}_{rule.name}"] = decided
    details = {"partitions": msgspec.to_builtins(written)}
    return TaskResult(outputs, counters, details, records=records, bytes_read=records * ID_BYTES)


def _apply_one(work: Work, shared: Shared, conditions: Conditions, context: TaskContext) -> Applied:
    rules, first, ends = shared.rules, 0, list[str]()
    counts, decided, leaving = [RuleCounts() for _ in rules], list[np.ndarray](), list[np.ndarray]()
    with ShardWriter(urls.join(context.step_directory, work.output), SCHEMA, DICTIONARY) as writer:
        for group in read_records(work.part, conditions.wanted, shared.types):
            answers = conditions.answers(group.records, work.part.dataset)
            applies, missing = applying(group, answers, work, shared)
            found = decide(rules, applies)
            counts = [
                one
                + RuleCounts(
                    int(applies[number].sum()), int((found.decisive == number).sum()), int(missing[number].sum())
                )
                for number, one in enumerate(counts)
            ]
            if len(found.leaving):
                table = _list(rules, group, applies, found, first)
                ends = [ends[0] if ends else table["id"][0].as_py(), table["id"][-1].as_py()]
                writer.write(table)
            leaving.append(first + found.leaving)
            decided.append(found.decisive[found.leaving])
            first += len(group.high)
    if first != work.rows:
        raise CorruptError(
            f"{work.part.dataset} has {first} rows, but its manifest lists {work.rows}; remove the directory of the "
            "step that wrote it, and run again"
        )
    sizes = text_bytes(work.part.dataset, np.concatenate([np.empty(0, np.int64), *leaving]))
    which = np.concatenate([np.empty(0, np.int64), *decided])
    counts = [one + RuleCounts(text_bytes=int(sizes[which == number].sum())) for number, one in enumerate(counts)]
    info, (lowest, highest) = writer.info, ends or (None, None)
    partition = Partition(
        work.output, work.part.source, info.rows, info.bytes, info.xxh3, first_id=lowest, last_id=highest
    )
    return Applied(partition, first, counts)


def _list(rules: Sequence[Rule], group: RowGroup, applies: np.ndarray, found: Decisions, first: int) -> pa.Table:
    """Return the rows of a list for a row group whose first document is row `first` of the partition."""
    leaving = found.leaving
    names = pa.array([RULE + rule.name for rule in rules], pa.string())
    columns = [
        group.ids.combine_chunks().take(pa.array(leaving)),
        pa.array((first + leaving).astype(np.uint64)),
        names.take(pa.array(found.decisive[leaving])),
        reasons(rules, applies, leaving).cast(SCHEMA.field("reasons").type),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
