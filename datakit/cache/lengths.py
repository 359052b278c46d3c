"""Encodes, reads and checks the lengths file of a shard (such as `shard-00017.lengths`), which holds each document's
number of tokens, and derives the documents' starts from it. The numbers are raw little-endian uint32, in the order of
the documents. docs.parquet has the same numbers next to the ids. The lengths are stored in both files because training
needs to know nothing else about the documents, and a training machine may not have Arrow. With the lengths file,
document boundaries can be found with one read, and with no library other than numpy. The file takes 4 bytes per
document, whereas the tokens of a 600-token document take 1,200 bytes or more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from datakit.cache.layout import REMEDY
from datakit.errors import CorruptError, NotFoundError
from datakit.storage import urls
from datakit.storage.manifest import Partition

LENGTHS_SUFFIX = ".lengths"
TYPE = np.dtype("<u4")


def encode_lengths(lengths: np.ndarray) -> bytes:
    return lengths.astype(TYPE).tobytes()


def lengths_bytes(rows: int) -> int:
    return rows * TYPE.itemsize


def read_lengths(directory: str, partition: Partition) -> np.ndarray:
    """Read a shard's lengths, uint32 [rows], in one request. Raises CorruptError if the file is missing or damaged."""
    url = urls.join(directory, partition.path) + LENGTHS_SUFFIX
    try:
        data = urls.read_bytes(url)
    except NotFoundError as error:
        raise CorruptError(f"{url} is missing; {REMEDY}") from error
    difference = disagreement(data, partition)
    if difference is not None:
        raise CorruptError(f"{url} {difference}; run `datakit validate`")
    return np.frombuffer(data, TYPE)


def disagreement(data: bytes, partition: Partition) -> str | None:
    """Describe how the file contradicts the manifest, in words that follow the file's name; None if the two agree."""
    if len(data) != lengths_bytes(partition.rows):
        return (
            f"has {len(data)} bytes, but the lengths of {partition.rows} documents take {lengths_bytes(partition.rows)}"
        )
    total = int(np.frombuffer(data, TYPE).sum(dtype=np.int64))
    if total != (partition.tokens or 0):
        return f"lists documents with {total} tokens in total, but the manifest says {partition.tokens or 0}"
    return None


def starts_of(lengths: np.ndarray | Sequence[int]) -> np.ndarray:
    """Return the start positions of the documents, beginning with 0, and the end of the last one: int64 [N + 1]."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def stretches(starts: np.ndarray, limit: int) -> Iterator[tuple[int, int]]:
    """Yield consecutive ranges [first, last) of documents, each of at most `limit` tokens or of a single document.

    starts: the starts of the N documents, followed by the end of the last one: [N + 1].
    """
    first, count = 0, len(starts) - 1
    while first < count:
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + limit, "right")) - 1)
        yield first, last
        first = last
