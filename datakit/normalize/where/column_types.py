"""Decides the type in which `where` sees each column: the type that the recipe declares or, by default, the column's
type for the whole source.

If the recipe declares the types of all columns that `where` reads, nothing has to be read in advance. Otherwise a phase
reads the whole source once and unifies the types of its columns before any record is selected.
"""

from __future__ import annotations

from typing import Any

import msgspec

from datakit.engine.task import TaskContext, TaskResult, Tolerance
from datakit.normalize.columns.conflicts import with_policies
from datakit.normalize.columns.upstream_columns import UpstreamColumns
from datakit.normalize.config import Config
from datakit.normalize.phase_data import RouteArguments, RouteShared, TypesDetails, to_plain
from datakit.normalize.readers.base import ReadContext, with_splits
from datakit.normalize.readers.slices import begun, despite_damage, read_slice
from datakit.normalize.readers.streams import Streams
from datakit.normalize.record_counts import IN, RecordCounts
from datakit.normalize.refusals import with_all_refusals
from datakit.normalize.transform import Transform
from datakit.storage.fingerprint import config_of

PHASE = "types"
UNLIMITED = 1 << 62  # no limit on unusable records in this phase: their number is checked in the routing phase


def find_types(arguments: dict[str, Any], shared: dict[str, Any], task: TaskContext) -> TaskResult:
    """Find the column types of one slice; its damaged streams are left out. Raises an InputError that names all of the
    slice's refused files.
    """
    own, common = msgspec.convert(arguments, RouteArguments), msgspec.convert(shared, RouteShared)
    config = config_of(common.config, Config)

    def context(streams: Streams) -> ReadContext:
        counts = RecordCounts(Tolerance(UNLIMITED))
        return ReadContext(own.inputs(common.base), config, counts, task, streams)

    def work() -> TaskResult:
        return despite_damage(context(Streams()), own.ranges, lambda streams: _find_types(context(streams), own))

    return with_all_refusals(work, context(Streams()), own, lambda trial, part: _read_columns(trial, part)[0])


def _find_types(context: ReadContext, own: RouteArguments) -> TaskResult:
    columns, bytes_read = _read_columns(context, own)
    context.inputs.check()
    details = to_plain(
        TypesDetails(
            columns.schemas(), list(columns.largest.items()), columns.absent(), columns.names(context.choice.unread)
        )
    )
    return TaskResult(details=details, records=context.counts.counters[IN], bytes_read=bytes_read)


def _read_columns(context: ReadContext, own: RouteArguments) -> tuple[UpstreamColumns, int]:
    config, counts, task = context.config, context.counts.counters, context.task
    transform = Transform(config.transform) if config.transform else None
    columns, bytes_read = UpstreamColumns(config, everything=True), 0
    for chunk in read_slice(context, own.ranges):
        task.hold(chunk.file, int(chunk.positions[0]), chunk.table.num_rows)
        table = with_splits(chunk, own.splits).table
        table = transform.apply(table) if transform else table
        columns.add(chunk.file, with_policies(table, config.conflicts))
        bytes_read += chunk.bytes_read
        task.report(counts[IN], bytes_read)
        task.release()
    columns.check_text(begun(own.ranges), context.choice.unread)
    return columns, bytes_read
