"""Finds where the `limit` of a source ends: counts the documents of each slice, in the order of the source, until there
are enough.

The order is that of the files' paths and, in a file, of the records. A document counts if the other settings leave it
(where, sample, text rules); exact duplicates are removed later. Slices are counted in waves, each twice as large as the
one before, so at most about three times as much is read as needed, and what is read does not depend on the number of
workers. The routing phase then reads only the slices up to the one in which the limit ends, and counts the further
documents of this slice as dropped. What comes after it is never read, so its records cannot be counted; its files are.

Cost: the records up to the limit are read twice. A file that cannot be cut (see readers/slices.py) is read to its end.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from datakit.engine.task import Phase, TaskContext, TaskResult, Tolerance
from datakit.normalize.columns.upstream_columns import UpstreamColumns
from datakit.normalize.config import Config
from datakit.normalize.phase_data import CountDetails, RouteArguments, RouteShared, to_plain
from datakit.normalize.readers.base import ReadContext
from datakit.normalize.readers.slices import FileRange, despite_damage, read_slice
from datakit.normalize.readers.streams import Streams
from datakit.normalize.record_counts import IN, RecordCounts
from datakit.normalize.refusals import with_all_refusals
from datakit.normalize.route import Router, without_skipped
from datakit.storage.fingerprint import config_of

PHASE = "limit"
FUNCTION = f"{__name__}:count_documents"
FIRST_WAVE = 4  # slices, which are about 256 MiB of text
UNLIMITED = 1 << 62  # no limit on unusable records in this phase: their number is checked in the routing phase
Slices = Sequence[Sequence[FileRange]]


def documents_of_slices(limit: int | None, route: Phase) -> Generator[Phase, Sequence[TaskResult], list[int] | None]:
    """Return the number of documents to take from each slice, up to the slice in which the limit ends; None if there is
    no limit. route: the phase that routes all slices.
    """
    if limit is None:
        return None
    counts, wave = list[int](), FIRST_WAVE
    while len(counts) < len(route.tasks) and sum(counts) < limit:
        tasks = (replace(task, function=FUNCTION) for task in route.tasks[len(counts) : len(counts) + wave])
        found = yield replace(route, name=f"{PHASE}-{len(counts):05d}", tasks=tuple(tasks))
        counts += [msgspec.convert(result.details, CountDetails).documents for result in found]
        wave *= 2
    return taken(counts, limit)


def limited(route: Phase, most: Sequence[int] | None) -> Phase:
    """Return the phase that takes as many documents as `most` says from each of the first slices, and reads no other
    slice.
    """
    if most is None:
        return route
    tasks = zip(route.tasks, most, strict=False)
    return replace(
        route, tasks=tuple(replace(task, arguments={**task.arguments, "most": number}) for task, number in tasks)
    )


def taken(counts: Sequence[int], limit: int) -> list[int]:
    """Return the number of documents to take from each slice that is read, given the number that each has.

    >>> taken([3, 0, 4, 2], 5), taken([3, 4], 3), taken([1], 9)
    ([3, 0, 2], [3], [1])
    """
    found = list[int]()
    for count in counts:
        if sum(found) >= limit:
            break
        found.append(min(count, limit - sum(found)))
    return found


def unread_files(slices: Slices, read: int) -> int:
    """Return the number of files of which no slice before number `read` has a part."""
    begun = {part.path for ranges in slices[:read] for part in ranges}
    return len({part.path for ranges in slices[read:] for part in ranges} - begun)


def count_documents(arguments: dict[str, Any], shared: dict[str, Any], task: TaskContext) -> TaskResult:
    """Count the documents of one slice. Raises an InputError that names all of the slice's refused files."""
    own, common = msgspec.convert(arguments, RouteArguments), msgspec.convert(shared, RouteShared)
    config = config_of(common.config, Config)

    def context(streams: Streams) -> ReadContext:
        return ReadContext(own.inputs(common.base), config, RecordCounts(Tolerance(UNLIMITED)), task, streams)

    def work() -> TaskResult:
        def count(streams: Streams) -> TaskResult:
            return _count(context(streams), own, common)[1]

        return despite_damage(context(Streams()), own.ranges, count)

    def check(trial: ReadContext, part: RouteArguments) -> UpstreamColumns:
        return _count(trial, part, common)[0].columns

    return with_all_refusals(work, context(Streams()), own, check)


def _count(context: ReadContext, own: RouteArguments, common: RouteShared) -> tuple[Router, TaskResult]:
    router, bytes_read = Router(own, common, context.config, context.counts), 0
    for chunk in read_slice(context, own.ranges):
        router.route(without_skipped(chunk, context, own, common), lambda *rows: None)
        bytes_read += chunk.bytes_read
        context.task.report(context.counts.counters[IN], bytes_read)
        context.task.release()
    context.inputs.check()
    details = to_plain(CountDetails(router.documents))
    return router, TaskResult(details=details, records=context.counts.counters[IN], bytes_read=bytes_read)
