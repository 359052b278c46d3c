"""Finds the places at which large web archives are cut into slices: the record that begins after each SLICE_BYTES of
content, if a member of the compressed file begins with it.

A WARC file of Common Crawl has 1 GB, and 5 GB of content. Extracting all its texts takes minutes, so a task that dies
at a bad record must not repeat all of it, and several workers should share it. Guessing where a record begins in the
middle of a file would be cheaper than reading it, but a page may hold a web archive itself. Therefore a phase reads
each large archive once, with the same code that will read its slices. A file of one single member is not cut.

Cost: 1 to 2 ms per MB of content, a few per cent of what extraction costs. Memory: the longest permitted record.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash

from datakit.engine.task import BATCH_HANG_SECONDS, Phase, Step, Task, TaskContext, TaskResult, Tolerance
from datakit.errors import UnreadableError
from datakit.normalize.config import Config
from datakit.normalize.formats import WEB_ARCHIVES, compression_of, format_of
from datakit.normalize.phase_data import RouteArguments, RouteShared, to_plain
from datakit.normalize.readers.base import ReadContext
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.slices import EXPANSION, NO_CUTS, SLICE_BYTES, Cuts, FileRange
from datakit.normalize.readers.web.columns import require_libraries
from datakit.normalize.record_counts import RecordCounts
from datakit.storage.fingerprint import config_of, spelled_out

PHASE = "index"
INDEX = f"{__name__}:index_archive"


@dataclass(frozen=True)
class IndexDetails:
    """The places at which an archive is cut, as (stored offset, content offset), and the size of its content."""

    cuts: list[tuple[int, int]]
    content_bytes: int


def index_archive(arguments: dict[str, Any], shared: dict[str, Any], task: TaskContext) -> TaskResult:
    """Find the places at which one archive is cut. Raises InputError."""
    from datakit.normalize.readers.web.records import Record, records_of  # needs libraries that others do not need

    own, common = msgspec.convert(arguments, RouteArguments), msgspec.convert(shared, RouteShared)
    config, part = config_of(common.config, Config), own.ranges[0]
    context = ReadContext(own.inputs(common.base), config, RecordCounts(Tolerance(1 << 62)), task)
    cuts, target, end = list[tuple[int, int]](), SLICE_BYTES, 0
    for found in records_of(context, part.path, part.format):
        if isinstance(found, Record):
            if found.position >= target and found.may_be_cut:
                cuts.append((found.stored, found.position))
                target = found.position + SLICE_BYTES
            end = found.position + len(found.header) + len(found.block)
    context.inputs.check()
    return TaskResult(details=msgspec.to_builtins(IndexDetails(cuts, end)), bytes_read=end)


def prepared(
    step: Step, config: Config, inputs: Inputs, files: Sequence[tuple[str, int]], memory: int
) -> Generator[Phase, Sequence[TaskResult], Cuts]:
    """Return where the large web archives among `files`, given as (path, size in bytes), are cut. memory: the number of
    bytes for a task. Raises UsageError if a library that the reader needs is missing.
    """
    if not has_archives(files, config):
        return NO_CUTS
    require_libraries(config.extract)
    sizes = dict(files)
    paths = [path for path in sorted(sizes) if _is_archive(path, config) and _is_large(path, sizes[path])]
    if not paths:
        return NO_CUTS
    tasks = [_task(path, sizes[path], inputs, config) for path in paths]
    results = yield Phase(
        PHASE, tuple(tasks), to_plain(RouteShared(step.operations["base"], spelled_out(config), 1)),
        memory_bytes=memory, memory_per_input_byte=0.0, hang_seconds=BATCH_HANG_SECONDS,
    )  # fmt: skip
    return cuts_of(paths, results)


def has_archives(files: Sequence[tuple[str, int]], config: Config) -> bool:
    """Return True if one of the files is a web archive. Files of unknown formats are left to `cut_slices`."""
    return any(_is_archive(path, config) for path, _ in files)


def only_archives(files: Sequence[tuple[str, int]], config: Config) -> bool:
    """Return True if all files are web archives."""
    return bool(files) and all(_is_archive(path, config) for path, _ in files)


def _is_archive(path: str, config: Config) -> bool:
    try:
        return format_of(path, config.format) in WEB_ARCHIVES
    except UnreadableError:
        return False


def _is_large(path: str, size: int) -> bool:
    """Return True if an archive should be cut. size: that of the stored file, in bytes."""
    return size * (EXPANSION if compression_of(path) else 1) > SLICE_BYTES


def _task(path: str, size: int, inputs: Inputs, config: Config) -> Task:
    """Create a task that reads one archive. Its key is the path's hash, since a path may contain any character."""
    listed = {path: inputs.listed[path]} if path in inputs.listed else {}
    copies = {path: inputs.copies[path]} if path in inputs.copies else {}
    part = FileRange(path, format_of(path, config.format), size)
    key = xxhash.xxh3_128_hexdigest(path.encode("utf-8", "surrogateescape"))
    arguments = to_plain(RouteArguments(key, [part], listed, 0, copies))
    return Task(key, INDEX, arguments, input_bytes=size, stored_bytes=size, file=path)


def cuts_of(paths: Sequence[str], results: Sequence[TaskResult]) -> Cuts:
    """Return the cuts of each file, given the results of its task."""
    found: dict[str, Sequence[tuple[int, int, int]]] = {}
    for path, result in zip(paths, results, strict=True):
        details = msgspec.convert(result.details, IndexDetails)
        starts = [(0, 0), *details.cuts]
        ends = [content for _, content in starts[1:]] + [details.content_bytes]
        found[path] = [(*start, end - start[1]) for start, end in zip(starts, ends, strict=True)]
    return found


def content_starts(cuts: Cuts) -> Mapping[tuple[str, int], int]:
    """Return the content offset of each place at which a file is cut, by path and stored offset."""
    return {(path, stored): content for path, places in cuts.items() for stored, content, _ in places if stored}
