"""Writes an uncompressed shard's data file, and reads or memory-maps a local one as one flat array of tokens, after
checking that its chunks are in order. TensorStore writes the chunks of a raw (uncompressed) shard one after the other
from the file's first byte. The file therefore holds the little-endian tokens end to end, followed by the chunk index.
Each index entry is compared with the expected one; a file whose chunks are in any other order is left to TensorStore.
One system call reads a block straight into the caller's array without holding the interpreter's lock, at 1.3 times the
rate of copying it from a memory map. TensorStore reaches only 0.3 times the rate of a memory map, because it fills new
buffers and copies them. Raw shards are also written without TensorStore: tokens are written to the file and hashed as
they arrive, while they are in a core's cache, and the index follows. Collecting all tokens first took three times as
much CPU time, because the memory for them had to be cleared by the kernel and was copied when it grew (measured); and
TensorStore, which takes 0.1 s to import, is not imported. A test compares the bytes of the data file and of zarr.json
with those that TensorStore writes.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from functools import cache
from typing import Any, BinaryIO

import numpy as np
import xxhash

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


class RawWriter:
    """Writes the data file of a raw shard to `file`, an empty binary file. bytes: how many bytes it has written."""

    def __init__(self, file: BinaryIO, dtype: np.dtype) -> None:
        self._file, self._dtype, self._digest = file, dtype.newbyteorder("<"), xxhash.xxh3_128()
        self.bytes = 0

    @property
    def xxh3(self) -> str:
        """The xxh3-128 of the bytes written so far."""
        return self._digest.hexdigest()

    def add(self, tokens: np.ndarray) -> None:
        """Append tokens."""
        self._write(np.ascontiguousarray(tokens, self._dtype).view(np.uint8).data)

    def finish(self, metadata: dict[str, Any]) -> None:
        """Pad the last chunk with zeros, and append the chunk index. metadata: the zarr.json of the shard."""
        (sharding,) = (codec["configuration"] for codec in metadata["codecs"])
        chunk_bytes = sharding["chunk_shape"][0] * self._dtype.itemsize
        chunks = -(-self.bytes // chunk_bytes)
        self._write(bytes(chunks * chunk_bytes - self.bytes))
        index = np.empty((chunks, 2), "<u8")
        index[:, 0], index[:, 1] = np.arange(chunks) * chunk_bytes, chunk_bytes
        content = index.tobytes()
        self._write(content + crc32c(content).to_bytes(CHECKSUM, "little"))

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.bytes += len(data)


def encoded_metadata(metadata: dict[str, Any]) -> bytes:
    """Return the content of a raw shard's zarr.json as TensorStore writes it: with sorted keys, and without settings
    that have their default value.
    """
    (sharding,) = (codec["configuration"] for codec in metadata["codecs"])
    shown = {key: value for key, value in sharding.items() if key != "index_location"}  # "end"
    naming = {"name": metadata["chunk_key_encoding"]["name"]}  # its separator is "/"
    codecs = [{"name": "sharding_indexed", "configuration": shown}]
    content = {**metadata, "chunk_key_encoding": naming, "codecs": codecs}
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


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
