"""Finds all unusable files of a slice after the first one was refused: reads each file again separately, up to its own
first error, and compares its columns with those of the sound files before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import msgspec
import pyarrow as pa

from datakit.engine.task import TaskContext
from datakit.errors import DatakitError, RefusedError, refuse_all
from datakit.normalize.columns.number_types import Path
from datakit.normalize.columns.schema_union import unite
from datakit.normalize.columns.upstream_columns import UpstreamColumns
from datakit.normalize.phase_data import RouteArguments
from datakit.normalize.readers.base import ReadContext
from datakit.normalize.readers.slices import FileRange, despite_damage
from datakit.normalize.readers.streams import Streams
from datakit.normalize.settings.column_settings import strict_columns

T = TypeVar("T")
# Reads one file range, as a slice of its own, and returns its columns.
Check = Callable[[ReadContext, RouteArguments], UpstreamColumns]


def with_all_refusals(work: Callable[[], T], context: ReadContext, own: RouteArguments, check: Check) -> T:
    """Return `work()`. If it raises RefusedError, raise the errors of all refused files of the slice instead."""
    try:
        return work()
    except RefusedError as error:
        refuse_all(list(_refusals(context, own, check)) or [error])
        raise


def _refusals(context: ReadContext, own: RouteArguments, check: Check) -> Iterator[RefusedError]:
    """Yield the error of each file that is refused for a fault of its own, or whose columns conflict with those of
    earlier files.
    """
    task = context.task
    quiet = TaskContext("", task.scratch, report=task.report, write_limit=task.write_limit)
    trial = replace(context.for_trial(), task=quiet)
    sound, union, largest = [], pa.schema([]), dict[Path, int]()
    strict = strict_columns(context.config.conflicts)
    for part in own.ranges:
        try:
            columns = _checked(trial, _only(own, part), check)
            largest |= {path: max(value, largest.get(path, 0)) for path, value in columns.largest.items()}
            try:
                union = unite([("", union), (part.path, columns.union)], largest, strict)
            except RefusedError:
                # raises an error that names both files, unlike the error caught here
                unite([*sound, (part.path, columns.union)], largest, strict)
            sound.append((part.path, columns.union))
        except RefusedError as error:
            yield error
        except DatakitError:
            continue  # not a refusal of the file; if the error persists, the next run reports it


def _only(own: RouteArguments, part: FileRange) -> RouteArguments:
    """Return the arguments of a task that reads only this file range."""
    return msgspec.structs.replace(own, ranges=[part])


def _checked(context: ReadContext, own: RouteArguments, check: Check) -> UpstreamColumns:
    def work(streams: Streams) -> UpstreamColumns:
        return check(replace(context, streams=streams), own)

    return despite_damage(context, own.ranges, work)
