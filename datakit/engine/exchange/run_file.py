"""Defines the format of exchange runs; encodes, reads and checks their indexes; memory-maps ranges of buckets.

    <run>.arrow        Arrow IPC stream: schema, one record batch per non-empty bucket (several if it is over 4 MiB)
    <run>.arrow.index  magic, sizes, schemas, then byte offsets, one per (bucket, segment) and one for the end

A run consists of rows ordered by bucket, and an index of byte offsets. A segment is a sequence of rows that share one
schema. If a run was combined from several runs, it starts a new segment wherever the schema changes from one of them
to the next. In each of its buckets, the Arrow messages of these runs follow one another in the order of the runs. A
file with several segments is not a valid Arrow stream, because the file contains only the first schema; the index has
all of them.
Record batches can be copied without decoding because an encapsulated Arrow message states its own length.

A reducer that reads buckets [a, b) makes two requests per run: one for the first 64 KiB of the index, which hold about
8,000 offsets, and one for a range of data. A longer index or a range over 32 MiB takes more requests. Local files are
memory-mapped in place; remote ranges are copied to scratch and mapped there, so a reducer's anonymous memory does not
grow with the data.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from datakit.errors import CorruptError, NotFoundError
from datakit.storage import urls
from datakit.storage.io_errors import scratch_errors

MAGIC = b"dkrun/1\n"
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
INDEX_SUFFIX = ".index"
# The magic; the numbers of buckets, segments, rows and distinct schemas; and the position of the first offset.
_FIXED = struct.Struct("<8sIIQII")
HEAD_BYTES = 64 << 10
PIECE_BYTES = 32 << 20


@dataclass(frozen=True)
class RunIndex:
    """The part of a run's index that covers the requested buckets, the first of which is `first_bucket`.

    buckets, rows: the numbers of buckets and rows in the run. schemas: one serialized schema per segment.
    offsets: byte positions in the data file, int64 [requested buckets x segments + 1].
    """

    buckets: int
    rows: int
    schemas: tuple[bytes, ...]
    offsets: np.ndarray
    first_bucket: int = 0

    @property
    def segments(self) -> int:
        """The number of segments in the run."""
        return len(self.schemas)

    def encode(self) -> bytes:
        """Return the content of the index file; equal runs have equal index files."""
        distinct = list(dict.fromkeys(self.schemas))
        table = struct.pack(f"<{len(distinct)}I", *map(len, distinct))
        which = struct.pack(f"<{self.segments}I", *map(distinct.index, self.schemas))
        names = table + which + b"".join(distinct)
        names += bytes(-len(names) % 8)
        fixed = _FIXED.pack(MAGIC, self.buckets, self.segments, self.rows, len(distinct), _FIXED.size + len(names))
        return fixed + names + self.offsets.astype("<i8").tobytes()


def read_index(url: str, first: int = 0, stop: int | None = None) -> RunIndex:
    """Read the index of run `url` for buckets [first, stop), in up to three requests. Raises CorruptError."""
    place = url + INDEX_SUFFIX
    head = urls.read_range(place, 0, HEAD_BYTES)
    if len(head) < _FIXED.size or not head.startswith(MAGIC):
        raise CorruptError(f"{place} is not the index of an exchange file")
    _, buckets, segments, rows, distinct, table_start = _FIXED.unpack_from(head)
    last: int = buckets if stop is None else stop
    if not 0 <= first <= last <= buckets:
        raise ValueError(f"buckets {first} to {last} were requested from {url}, which has {buckets} buckets")
    if table_start > len(head):
        head += urls.read_range(place, len(head), table_start)
    begin, end = table_start + first * segments * 8, table_start + (last * segments + 1) * 8
    table = head[begin:end] if end <= len(head) else urls.read_range(place, begin, end)
    if len(table) != end - begin:
        raise CorruptError(f"{place} is cut short: only {len(table)} of {end - begin} bytes of offsets exist")
    schemas = _decode_schemas(head[_FIXED.size : table_start], distinct, segments)
    return RunIndex(buckets, rows, schemas, np.frombuffer(table, "<i8"), first)


def _decode_schemas(data: bytes, distinct: int, segments: int) -> tuple[bytes, ...]:
    lengths = struct.unpack_from(f"<{distinct}I", data)
    which = struct.unpack_from(f"<{segments}I", data, 4 * distinct)
    ends = np.cumsum((4 * (distinct + segments), *lengths))
    schemas = [data[ends[i] : ends[i + 1]] for i in range(distinct)]
    return tuple(schemas[i] for i in which)


def map_range(url: str, start: int, stop: int, scratch: Path) -> pa.Buffer:
    """Map bytes [start, stop) of a file; a remote range is first copied to `scratch`."""
    if urls.is_local(url):
        return map_file(urls.local_path(url), start, stop)
    path = scratch / f"range-{uuid.uuid4().hex}"
    try:
        with scratch_errors(path), open(path, "wb") as file:
            file.writelines(pieces(url, start, stop))
        return map_file(str(path), 0, stop - start)
    finally:
        path.unlink(missing_ok=True)  # the mapping keeps the bytes until the last buffer is freed


def pieces(url: str, start: int, stop: int) -> Iterator[bytes]:
    """Yield bytes [start, stop) of a file, PIECE_BYTES per request. Raises CorruptError if the file is too short."""
    for begin in range(start, stop, PIECE_BYTES):
        end = min(begin + PIECE_BYTES, stop)
        piece = urls.read_range(url, begin, end)
        if len(piece) != end - begin:
            raise CorruptError(
                f"{url} is cut short: bytes {begin} to {end} were requested, but only {len(piece)} of them exist"
            )
        yield piece


def map_file(path: str, start: int, stop: int) -> pa.Buffer:
    """Map bytes [start, stop) of a local file. Raises CorruptError or NotFoundError."""
    try:
        with pa.memory_map(path) as file:
            if file.size() < stop:
                raise CorruptError(f"{path} is cut short: it has {file.size()} bytes, but its index requires {stop}")
            file.seek(start)
            return file.read_buffer(stop - start)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} does not exist") from error


def decode_segments(index: RunIndex, data: pa.Buffer, url: str) -> Iterator[pa.Table]:
    """Yield a table per non-empty segment, with rows in bucket order. `data` holds the buckets that `index` covers."""
    offsets = index.offsets - index.offsets[0]
    for segment in range(index.segments):
        schema = pa.ipc.read_schema(pa.BufferReader(index.schemas[segment]))
        if index.segments == 1:
            spans = [(0, int(offsets[-1]))]
        else:
            begins, ends = offsets[segment : -1 : index.segments], offsets[segment + 1 :: index.segments]
            spans = list(zip(begins, ends, strict=True))
        batches = [batch for begin, end in spans for batch in _messages(data, int(begin), int(end), schema, url)]
        if batches:
            yield pa.Table.from_batches(batches, schema)


def decode_buckets(index: RunIndex, data: pa.Buffer, url: str) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """Yield a table per non-empty segment, as `decode_segments` does, and the bucket of each row: int64 [N]."""
    offsets = index.offsets - index.offsets[0]
    for segment in range(index.segments):
        schema = pa.ipc.read_schema(pa.BufferReader(index.schemas[segment]))
        begins, ends = offsets[segment : -1 : index.segments], offsets[segment + 1 :: index.segments]
        batches, numbers = list[pa.RecordBatch](), list[int]()
        for place in np.flatnonzero(ends > begins).tolist():
            found = list(_messages(data, int(begins[place]), int(ends[place]), schema, url))
            batches += found
            numbers += [index.first_bucket + place] * len(found)
        if batches:
            rows = [batch.num_rows for batch in batches]
            yield pa.Table.from_batches(batches, schema), np.repeat(np.array(numbers, np.int64), rows)


def _messages(data: pa.Buffer, begin: int, end: int, schema: pa.Schema, url: str) -> Iterator[pa.RecordBatch]:
    if begin == end:
        return
    try:
        for message in pa.ipc.MessageReader.open_stream(data.slice(begin, end - begin)):
            yield pa.ipc.read_record_batch(message, schema)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptError(f"{url} contains bytes that are not a record batch of its schema: {error}") from error


def windows(sizes: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, stop) of buckets with a total size of at most `most` per range. A bucket larger than `most`
    gets a range of its own.

    >>> list(windows(np.array([2, 2, 0, 9, 1]), 4))
    [(0, 3), (3, 4), (4, 5)]
    """
    ends, first = np.cumsum(sizes), 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield first, stop
        first = stop
