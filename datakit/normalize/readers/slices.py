"""Cuts a source's files into slices of about equal work (one per routing task), estimates the work for each file, and
calls the reader for its format. If compressed files of a slice turn out to be damaged, repeats the work on the slice
without the damaged parts. Plain JSON Lines files are cut into byte ranges and Parquet files into ranges of row groups,
of about 64 MiB each. Files in other formats, JSON arrays and compressed files cannot be cut. Small files are grouped in
path order, so that a hundred thousand files do not become a hundred thousand tasks. In a source of more than 1 TiB,
slices of up to 1 GiB are formed from these parts, because each task writes runs of its own, and the number of requests
of the exchange grows with the number of runs. Slices depend only on the listing, the configured format, Parquet footers
and the first bytes of large JSON files. They are in the order of the records: sorted by path, then by position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from datakit.errors import RefusedError, UnreadableError, refuse_all
from datakit.normalize import formats
from datakit.normalize.config import Config
from datakit.normalize.readers.archives.webdataset import read_webdataset
from datakit.normalize.readers.base import Chunks, ReadContext
from datakit.normalize.readers.columnar.arrow import read_arrow
from datakit.normalize.readers.columnar.parquet import open_parquet, read_parquet
from datakit.normalize.readers.csv import read_csv
from datakit.normalize.readers.dolma.attribute_files import documents_only
from datakit.normalize.readers.dolma.documents import read_dolma
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.json import read_json
from datakit.normalize.readers.json_arrays.recognition import HEAD_BYTES, Peeked, holds_array
from datakit.normalize.readers.streams import DamagedError, DamagedStreamError, Streams, decompressed
from datakit.normalize.readers.text import read_texts
from datakit.normalize.readers.xml.mediawiki import read_mediawiki
from datakit.storage import urls

SLICE_BYTES = 64 << 20  # about 0.3 s of work: much longer than a fork takes, yet little to repeat after a failure
LARGE_SLICE_BYTES = 1 << 30  # the largest slice of a large source; about 10 s of work
MOST_SLICES = 1 << 14  # a source that would have more slices gets larger ones, up to LARGE_SLICE_BYTES
# for files that hold one document each; below SLICE_BYTES, since reading the same amount from them takes longer
TEXT_SLICE_BYTES = 16 << 20
EXPANSION = 4  # approximate bytes of text per byte of a compressed file
FILE_OVERHEAD = 64 << 10  # opening a file takes about as long as reading this many bytes
FOOTER_THREADS = 16  # number of footers read in parallel; in an object store, each takes one small request
T = TypeVar("T")
Damage: TypeAlias = dict[str, tuple[int, str]]  # see Streams.damaged
# The ranges of web archives, by path: (offset in the stored file, offset in the content, size of the content in bytes)
Cuts: TypeAlias = Mapping[str, Sequence[tuple[int, int, int]]]
NO_CUTS: Cuts = MappingProxyType({})


@dataclass(frozen=True)
class FileRange:
    """Part of a file: bytes [start, stop) of plain JSON Lines or of a web archive as it is stored, row groups
    [start, stop) of Parquet, or the whole file.

    weight: the work that the part takes, estimated in bytes of text.
    """

    path: str
    format: str
    weight: int
    start: int = 0
    stop: int | None = None


def cut_slices(
    inputs: Inputs, files: Sequence[tuple[str, int]], config: Config, cuts: Cuts = NO_CUTS
) -> list[list[FileRange]]:
    """Cut the files of a source, given as (path, size in bytes) pairs, into slices. cuts: where to cut web archives.
    Raises one RefusedError for all files that prove unusable.
    """
    if config.format == formats.DOLMA:
        files = documents_only(files)
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        cut = list(pool.map(lambda file: _ranges_or_refused(inputs, file[0], file[1], config, cuts), sorted(files)))
    refuse_all([one for one in cut if isinstance(one, RefusedError)])
    found = [part for ranges in cut if not isinstance(ranges, RefusedError) for part in ranges]
    return list(_group(found, _growth(sum(part.weight for part in found))))


def _growth(weight: int) -> int:
    """Return how many times larger than usual the slices of a source are. weight: the total weight of its files.

    >>> [_growth(size) for size in (0, 1 << 40, 4 << 40, 1 << 50)]
    [1, 1, 4, 16]
    """
    return max(1, min(-(-weight // (MOST_SLICES * SLICE_BYTES)), LARGE_SLICE_BYTES // SLICE_BYTES))


def are_large(slices: Sequence[Sequence[FileRange]]) -> bool:
    """Return True if the slices are larger than usual: if one of several ranges has more than SLICE_BYTES."""
    return any(len(ranges) > 1 and sum(part.weight for part in ranges) > SLICE_BYTES for ranges in slices)


def _ranges_or_refused(
    inputs: Inputs, path: str, size: int, config: Config, cuts: Cuts
) -> list[FileRange] | RefusedError:
    try:
        if path in cuts:
            return _archive_ranges(path, formats.format_of(path, config.format), cuts[path])
        return list(_ranges(inputs, path, size, config))
    except RefusedError as error:
        return error


def _ranges(inputs: Inputs, path: str, size: int, config: Config) -> Iterator[FileRange]:
    kind = formats.format_of(path, config.format)
    compressed = formats.compression_of(path) is not None
    weight = size * EXPANSION if compressed or kind == formats.PARQUET else size
    if size <= SLICE_BYTES or compressed:
        yield FileRange(path, kind, weight + FILE_OVERHEAD)
    elif kind == formats.JSON and not _is_array(inputs, path):
        for start in range(0, size, SLICE_BYTES):
            stop = start + SLICE_BYTES
            yield FileRange(path, kind, SLICE_BYTES, start, stop if stop < size else None)
    elif kind == formats.PARQUET:
        yield from _row_group_ranges(inputs, path, weight)
    else:
        yield FileRange(path, formats.JSON_ARRAY if kind == formats.JSON else kind, weight)


def _is_array(inputs: Inputs, path: str) -> bool:
    """Return True if a large `.json` file is one JSON array. Reads its first bytes, up to 4 MiB if it begins with a
    bracket. Files of other names are not opened: `read_json` refuses an array among them.
    """
    if not path.lower().endswith(".json"):
        return False
    with urls.open_read(inputs.url(path)) as file:
        return holds_array(Peeked(iter(partial(file.read, HEAD_BYTES), b"")))


def _archive_ranges(path: str, format: str, places: Sequence[tuple[int, int, int]]) -> list[FileRange]:
    stops = [*(stored for stored, _, _ in places[1:]), None]
    return [
        FileRange(path, format, size + FILE_OVERHEAD, stored, stop)
        for (stored, _, size), stop in zip(places, stops, strict=True)
    ]


def _row_group_ranges(inputs: Inputs, path: str, weight: int) -> Iterator[FileRange]:
    with urls.open_read(inputs.url(path)) as source:
        file = open_parquet(source, path)
        if file is None:
            yield FileRange(path, formats.PARQUET, weight)
            return
        sizes = [file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups)]
    start = total = 0
    for group, size in enumerate(sizes):
        total += size
        if total >= SLICE_BYTES or group == len(sizes) - 1:
            yield FileRange(path, formats.PARQUET, total, start, group + 1)
            start, total = group + 1, 0


def _group(ranges: Iterable[FileRange], growth: int) -> Iterator[list[FileRange]]:
    group: list[FileRange] = []
    weight = 0
    for part in ranges:
        most = growth * (TEXT_SLICE_BYTES if part.format == formats.TEXT else SLICE_BYTES)
        if group and weight + part.weight > most:
            yield group
            group, weight = [], 0
        group.append(part)
        weight += part.weight
    if group:
        yield group


def begun(ranges: Sequence[FileRange]) -> set[str]:
    """Return the paths of the files that are read from their first record on."""
    return {part.path for part in ranges if part.start == 0}


def read_slice(context: ReadContext, ranges: Sequence[FileRange]) -> Chunks:
    """Yield the records of a slice, in order."""
    texts: list[str] = []
    for part in ranges:
        if part.format == formats.TEXT:
            texts.append(part.path)
            continue
        yield from read_texts(context, texts)
        texts = []
        yield from read_range(context, part)
    yield from read_texts(context, texts)


def read_range(context: ReadContext, part: FileRange) -> Chunks:
    """Yield the records of one file range, in order."""
    if part.format == formats.JSON:
        return read_json(context, part.path, part.start, part.stop)
    if part.format == formats.PARQUET:
        return read_parquet(context, part.path, part.start, part.stop)
    if part.format in (formats.CSV, formats.TSV):
        return read_csv(context, part.path, part.format)
    if part.format in formats.WEB_ARCHIVES:
        from datakit.normalize.readers.web.reader import read_web  # needs libraries that other formats do not need

        origin = context.inputs.content_starts.get((part.path, part.start), 0)
        return read_web(context, part.path, part.format, start=part.start, stop=part.stop, origin=origin)
    return _READERS[part.format](context, part.path)


_READERS: dict[str, Callable[[ReadContext, str], Chunks]] = {
    formats.ARROW: read_arrow,
    formats.TEXT: lambda context, path: read_texts(context, [path]),
    formats.JSON_ARRAY: lambda context, path: read_json(context, path, array=True),
    formats.MEDIAWIKI: read_mediawiki,
    formats.WEBDATASET: read_webdataset,
    formats.DOLMA: read_dolma,
}


def despite_damage(context: ReadContext, ranges: Sequence[FileRange], work: Callable[[Streams], T]) -> T:
    """Return `work(streams)`. If the call fails and a stream is damaged, repeat the call without that stream and the
    rest of its file.

    Any error may come from the content of a damaged stream, which is used until the damage is noticed.
    """
    try:
        return work(_streams(context, ranges, {}))
    except Exception:
        damaged = _find_damage(context, ranges)
        if not damaged:
            # `release` is not called, so the records in progress stay known, and the next attempt tries them one by one
            raise
        context.task.release()
    return work(_streams(context, ranges, damaged))


def _streams(context: ReadContext, ranges: Sequence[FileRange], damaged: Damage) -> Streams:
    def check(path: str) -> None:
        known = replace(context, streams=Streams(damaged))
        for start, reason in _find_damage(known, [part for part in ranges if part.path == path]).values():
            raise DamagedStreamError(path, start, reason)

    return Streams(damaged, check=check)


def _find_damage(context: ReadContext, ranges: Sequence[FileRange]) -> Damage:
    """Decompress every compressed file of a slice; return the damaged ones in the form of `Streams.damaged`.

    Damage already recorded in `context.streams` is not returned again. Files that hold one document each are left out,
    because their reader never uses a part of a file.
    """
    damaged: Damage = {}
    for part in ranges:
        if part.format in formats.STREAMED and formats.compression_of(part.path):
            try:
                _decompress_all(context, part.path)
            except DamagedStreamError as error:
                damaged[part.path] = error.start, error.reason
            except (DamagedError, UnreadableError):
                pass  # another problem, such as a truncated file; the reader reports it
    return damaged


def _decompress_all(context: ReadContext, path: str) -> None:
    done = 0
    with context.inputs.open(path) as file:
        for data in decompressed(file, path, streams=Streams(context.streams.damaged)):
            done += len(data)
            context.task.report(0, done)
