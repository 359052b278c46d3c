"""`shard-00017.lengths`: how many tokens each document of a shard has, raw little-endian uint32, in their order.

The shard's docs.parquet says the same beside the ids. It is said once more, for 4 bytes a document (a document of 600
tokens takes 1,200 or more), because these numbers are all that training asks of documents, on machines that have no
Arrow: borders of documents cost one read of a file and numpy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datakit.errors import CorruptError, NotFoundError
from datakit.storage import urls
from datakit.storage.manifest import Partition

LENGTHS_SUFFIX = ".lengths"
TYPE = np.dtype("<u4")


def encode_lengths(lengths: np.ndarray) -> bytes:
    """The file's bytes, or those of a stretch of it."""
    return lengths.astype(TYPE).tobytes()


def lengths_bytes(rows: int) -> int:
    """The file's size."""
    return rows * TYPE.itemsize


def read_lengths(directory: str, partition: Partition) -> np.ndarray:
    """A shard's lengths, uint32 [rows]: one read. Raises CorruptError where they are not what the manifest sums up."""
    url = urls.join(directory, partition.path) + LENGTHS_SUFFIX
    try:
        data = urls.read_bytes(url)
    except NotFoundError as error:
        raise CorruptError(f"{url} is missing; remove the cache's directory and make it again") from error
    difference = disagreement(data, partition)
    if difference is not None:
        raise CorruptError(f"{url} {difference}; `datakit validate` tells more")
    return np.frombuffer(data, TYPE)


def disagreement(data: bytes, partition: Partition) -> str | None:
    """In what the file's bytes differ from the manifest's sums of the shard; None where they agree."""
    if len(data) != lengths_bytes(partition.rows):
        return f"has {len(data)} bytes; {partition.rows} documents have {lengths_bytes(partition.rows)}"
    total = int(np.frombuffer(data, TYPE).sum(dtype=np.int64))
    if total != (partition.tokens or 0):
        return f"lists documents of {total} tokens together; the manifest says {partition.tokens or 0}"
    return None


def starts_of(lengths: np.ndarray | Sequence[int]) -> np.ndarray:
    """Where documents of these lengths begin, from 0, and where the last one ends: int64 [N + 1]."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts
