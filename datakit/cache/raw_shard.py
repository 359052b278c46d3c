"""Writes an uncompressed shard's data file, and reads or memory-maps a local one as one flat array of tokens, after
checking that its chunks are in order. TensorStore writes the chunks of a raw (uncompressed) shard one after the other
from the file's first byte. The file therefore holds the little-endian tokens end to end, followed by the chunk index.
Each index entry is compared with the expected one; a file whose chunks are in any other order is left to TensorStore.
One system call reads a block straight into the caller's array without holding the interpreter's lock, at 1.3 times the
rate of copying it from a memory map. TensorStore reaches only 0.3 times the rate of a memory map, because it fills new
buffers and copies them. Raw shards are also written without TensorStore, to avoid copies: the index is appended to the
buffer in which the tokens were collected. A test compares the bytes with those that TensorStore writes.
"""

from __future__ import annotations

import os
import sys
import weakref
from functools import cache
from typing import Any

import numpy as np

from datakit.errors import CorruptError
from datakit.storage.io_errors import read_errors

INDEX_ENTRY = 16  # a chunk's offset and size, uint64 each
CHECKSUM = 4  # crc32c of the index
CASTAGNOLI = 0x82F63B78  # the polynomial of crc32c, with its bits reversed
RAW: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]


class RawShard:
    """The flat array of `tokens` tokens at the start of the file `path`. Thread-safe."""

    def __init__(self, path: str, dtype: np.dtype, tokens: int) -> None:
        self.path = path
        self._dtype, self._tokens = dtype, tokens
        with read_errors(path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # Do not close the file when the process exits, because threads may still be reading it.
        weakref.finalize(self, os.close, self._descriptor).atexit = False

    def read_into(self, first: int, out: np.ndarray) -> None:
        """Fill `out` with the tokens from position `first` on. Raises CorruptError if the file ends too early."""
        place, position = out.data.cast("B"), first * self._dtype.itemsize
        while len(place):
            with read_errors(self.path):
                count = os.preadv(self._descriptor, [place], position)
            if not count:
                raise CorruptError(f"{self.path} ends at byte {position}: it was truncated; run `datakit validate`")
            place, position = place[count:], position + count

    def view(self) -> np.ndarray:
        """Return all tokens as a read-only memory map. Each part of the file is read only when it is accessed."""
        return np.memmap(self.path, self._dtype, mode="r", shape=(self._tokens,))


def open_raw(path: str, metadata: dict[str, Any]) -> RawShard | None:
    """Open a shard; return None if it is not one flat array. metadata: the parsed zarr.json. Raises NotFoundError."""
    (sharding,) = (codec["configuration"] for codec in metadata["codecs"])
    if sharding["codecs"] != RAW or sharding["index_location"] != "end" or sys.byteorder != "little":
        return None
    dtype, (tokens,) = np.dtype(metadata["data_type"]), metadata["shape"]
    (outer,), (chunk,) = metadata["chunk_grid"]["configuration"]["chunk_shape"], sharding["chunk_shape"]
    with read_errors(path):
        flat = _is_flat(path, outer // chunk, chunk * dtype.itemsize)
    return RawShard(path, dtype, tokens) if flat else None


def _is_flat(path: str, chunks: int, chunk_bytes: int) -> bool:
    """Return True if the file holds exactly `chunks` chunks of `chunk_bytes` bytes, in order, and then their index."""
    body, index_bytes = chunks * chunk_bytes, chunks * INDEX_ENTRY
    if os.path.getsize(path) != body + index_bytes + CHECKSUM:
        return False
    index = np.fromfile(path, "<u8", 2 * chunks, offset=body).reshape(-1, 2)
    return bool((index[:, 0] == np.arange(chunks) * chunk_bytes).all() and (index[:, 1] == chunk_bytes).all())


def add_index(data: bytearray, dtype: np.dtype, tokens: int, metadata: dict[str, Any]) -> None:
    """Turn `data`, the little-endian tokens of a raw shard, into the content of the shard's data file: pad the last
    chunk with zeros, and append the chunk index. metadata: the zarr.json of the shard.
    """
    (sharding,) = (codec["configuration"] for codec in metadata["codecs"])
    chunk_bytes = sharding["chunk_shape"][0] * dtype.itemsize
    chunks = -(-tokens * dtype.itemsize // chunk_bytes)
    data += bytes(chunks * chunk_bytes - len(data))
    index = np.empty((chunks, 2), "<u8")
    index[:, 0], index[:, 1] = np.arange(chunks) * chunk_bytes, chunk_bytes
    content = index.tobytes()
    data += content + crc32c(content).to_bytes(CHECKSUM, "little")


def crc32c(data: bytes) -> int:
    """Return the crc32c of a few KiB (at about 10 MB/s).

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    value, table = 0xFFFFFFFF, _crc_table()
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


@cache
def _crc_table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [(value >> 1) ^ (CASTAGNOLI if value & 1 else 0) for value in table]
    return table
