"""Divides large partitions into ranges of documents, which are encoded by tasks of their own, and keeps the encoded
documents of each range in a file until the shard is made from all of them.

How many ranges a partition has depends on the size of its text alone. A range consists of whole row groups, so no text
is decoded twice, and a task finds its row groups in the file's footer, so a plan reads no footers. A range's file is an
Arrow IPC stream with one record batch per batch of documents: `id`, `tokens` and `mask` (null if all are targets).

Why: a source of 1 to 4 GiB has 16 to 32 partitions of 64 to 128 MiB. Encoding one takes 2 to 4 s, so 64 cores would
wait that long for 16 tasks. In ranges of at most about 32 MiB, no task takes longer than a second. Smaller partitions,
which sources of up to 1 GiB have, are not divided: they are as small as a range.

Cost: the tokens are written and read once more, without being decoded, mostly in the page cache: 2 to 3 % of the CPU
time of encoding. The shard is then written as if the partition had not been divided. So it has the same bytes, tokens
are counted and lists of documents compressed only once. The task that writes a compressed shard holds its tokens. On
disk, the files take 0.6 bytes per byte of text until the step ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.cache.writer import Documents
from datakit.errors import CorruptError
from datakit.storage import atomic, urls

RANGE_BYTES = 32 << 20  # bytes of text in a range, about
WHOLE_BYTES = 48 << 20  # a partition with at most this much text is encoded by one task


class Part(msgspec.Struct, frozen=True):
    """Range `number` of the `count` ranges of a partition, counted from 0. By default, the whole partition."""

    number: int = 0
    count: int = 1

    @property
    def last(self) -> bool:
        """True if no range follows."""
        return self.number == self.count - 1

    def row_groups(self, rows: Sequence[int]) -> range:
        """Return the row groups that belong to this range. rows: the number of rows in each row group of the file.

        Each row group belongs to exactly one range: that in which its first row would lie if the rows were divided
        evenly. A range may have no row group.

        >>> [Part(number, 3).row_groups([10, 10, 10, 10]) for number in range(3)]
        [range(0, 2), range(2, 3), range(3, 4)]
        """
        total, starts = sum(rows), np.cumsum([0, *rows[:-1]])
        number = np.minimum(starts * self.count // max(1, total), self.count - 1)  # empty row groups may come last
        first, stop = (int(np.searchsorted(number[: len(rows)], value)) for value in (self.number, self.number + 1))
        return range(first, stop)


WHOLE = Part()


class EncodedRange(msgspec.Struct, frozen=True):
    """The encoded documents of a range. path: of their file, relative to the step's directory. documents, tokens: their
    numbers. text_bytes: the bytes of their text. quarantined: the number of documents that were left out.
    """

    path: str
    documents: int
    tokens: int
    text_bytes: int
    quarantined: int


def parts_of(text_bytes: int) -> int:
    """Return the number of ranges of a partition. text_bytes: the bytes of text in the partition.

    >>> [parts_of(size << 20) for size in (0, 32, 48, 49, 100, 1000)]
    [1, 1, 1, 2, 4, 32]
    """
    return 1 if text_bytes <= WHOLE_BYTES else -(-text_bytes // RANGE_BYTES)


def write_range(url: str, batches: Iterable[Documents], dtype: np.dtype) -> tuple[atomic.Committed, int, int]:
    """Write encoded documents to the file `url`. dtype: the type of the tokens. Returns the committed file and the
    numbers of documents and tokens.
    """
    schema, documents, tokens = _schema(dtype), 0, 0
    with atomic.staging(url) as path:
        with atomic.storage_errors(url), pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for batch in batches:
                writer.write_batch(_record_batch(batch, schema))
                documents, tokens = documents + len(batch.ids), tokens + len(batch.tokens)
        return atomic.commit_file(path, url), documents, tokens


def read_ranges(directory: str, ranges: Sequence[EncodedRange]) -> Iterator[Documents]:
    """Yield the documents of a partition's ranges, in order. directory: that of the step. Local files are mapped into
    memory. Raises CorruptError if a file does not hold what its task has reported.
    """
    for one in ranges:
        url, documents, tokens = urls.join(directory, one.path), 0, 0
        with _open(url) as file:
            try:
                for batch in pa.ipc.open_stream(file):
                    found = _documents(batch)
                    documents, tokens = documents + len(found.ids), tokens + len(found.tokens)
                    yield found
            except (pa.ArrowInvalid, OSError) as error:  # pyarrow raises OSError for a truncated file, too
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                raise CorruptError(f"{url} is damaged: {error}; remove it and run again") from error
        if (documents, tokens) != (one.documents, one.tokens):
            raise CorruptError(
                f"{url} holds {documents} documents and {tokens} tokens, but its task wrote {one.documents} documents "
                f"and {one.tokens} tokens; remove it and run again"
            )


def _open(url: str) -> Any:
    return pa.memory_map(urls.local_path(url)) if urls.is_local(url) else urls.open_read(url)


def _schema(dtype: np.dtype) -> pa.Schema:
    tokens, mask = (pa.large_list(pa.field("item", kind, nullable=False)) for kind in _types(dtype))
    return pa.schema([pa.field("id", pa.string()), pa.field("tokens", tokens), pa.field("mask", mask)])


def _types(dtype: np.dtype) -> tuple[pa.DataType, pa.DataType]:
    return pa.uint16() if dtype == np.uint16 else pa.uint32(), pa.uint8()


def _record_batch(batch: Documents, schema: pa.Schema) -> pa.RecordBatch:
    """Return the documents as a record batch, without copying tokens. The mask is null if all tokens are targets."""
    tokens = _lists(batch.tokens, batch.lengths, schema.field("tokens").type)
    kind = schema.field("mask").type
    mask = pa.nulls(len(batch.ids), kind) if batch.mask is None else _lists(batch.mask, batch.lengths, kind)
    return pa.RecordBatch.from_arrays([batch.ids.cast(pa.string()), tokens, mask], schema=schema)


def _lists(values: np.ndarray, lengths: np.ndarray, kind: Any) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    items = pa.Array.from_buffers(kind.value_type, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
    return pa.Array.from_buffers(kind, len(lengths), [None, pa.py_buffer(offsets)], children=[items])


def _documents(batch: pa.RecordBatch) -> Documents:
    tokens, mask = batch.column("tokens"), batch.column("mask")
    offsets = np.frombuffer(tokens.buffers()[1], np.int64, len(tokens) + 1)
    targets = None if mask.null_count else _values(mask, np.uint8)
    kind = np.uint16 if tokens.type.value_type == pa.uint16() else np.uint32
    return Documents(batch.column("id"), _values(tokens, kind), np.diff(offsets), targets)


def _values(lists: pa.Array, kind: type[np.generic]) -> np.ndarray:
    values, buffer = lists.values, lists.values.buffers()[1]
    return np.empty(0, kind) if buffer is None else np.frombuffer(buffer, kind, len(values))
