"""Writes a long zarr 3 array of one axis in pieces, with the chunks and codecs of Levanter's arrays.

Levanter opens its arrays with fixed settings: a declared length of 2^54, inner chunks of 256 Ki elements, compressed by
blosc, and 512 of them in each file. An array with other settings is refused. TensorStore would write such a file again
for each piece that it gets, or hold all of it in memory. Therefore the files are written here: TensorStore encodes some
inner chunks at a time, which are appended to the file, and the index of the file comes last. A test compares the files
with those that TensorStore writes.

Memory: a few MiB, whatever the array's length.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import IO, Any

import numpy as np

from datakit.cache.layout import METADATA_FILE
from datakit.cache.raw_shard import CHECKSUM, INDEX_ENTRY, crc32c
from datakit.storage import atomic, urls

LENGTH = 1 << 54  # the declared length
CHUNK = 256 << 10  # elements of an inner chunk
CHUNKS = 512  # inner chunks of a file
AT_ONCE = 8  # inner chunks that are encoded together, by as many threads as there are CPUs
MISSING = np.uint64(2**64 - 1)  # offset and size of an inner chunk that is not in the file
COMPRESSION: list[dict[str, Any]] = [
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "blosc", "configuration": {"clevel": 5}},
]


class ArrayWriter:
    """Writes one array below `directory`, as a context manager. files: their paths relative to the directory. The array
    is complete when the block ends without an error. The element at index 0 can be left open until then (`first`).
    """

    def __init__(self, directory: str, dtype: str) -> None:
        self.directory, self._dtype = directory, np.dtype(dtype).newbyteorder("<")
        self.files: list[str] = []
        self._encoder = _encoder(dtype)
        self._pending: list[np.ndarray] = []
        self._pending_elements = 0
        self._index: list[tuple[int, int]] = []
        self._stack, self._file, self._path = ExitStack(), None, None

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with self._stack:
            if kind is None:
                self._finish()

    def add(self, values: np.ndarray) -> None:
        """Append elements."""
        self._pending.append(values)
        self._pending_elements += len(values)
        if self._pending_elements >= AT_ONCE * CHUNK:
            whole = self._pending_elements // CHUNK * CHUNK
            together = np.concatenate(self._pending)
            self._encode(together[:whole])
            self._pending, self._pending_elements = [together[whole:]], len(together) - whole

    def _encode(self, values: np.ndarray) -> None:
        """Write whole chunks, and begin a new file where one is full."""
        for start in range(0, len(values), AT_ONCE * CHUNK):
            some = values[start : start + AT_ONCE * CHUNK]
            self._encoder[: len(some)].write(np.ascontiguousarray(some, self._dtype)).result()
            for number in range(len(some) // CHUNK):
                self._append(self._encoder.kvstore[f"c/{number}"])

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self.files.append(f"c/{len(self.files)}")
            self._path = self._stack.enter_context(atomic.staging(urls.join(self.directory, self.files[-1])))
            self._file = self._stack.enter_context(open(self._path, "wb"))  # noqa: SIM115
        file: IO[bytes] = self._file
        self._index.append((file.tell(), len(data)))
        file.write(data)
        if len(self._index) == CHUNKS:
            self._end_file()

    def _end_file(self) -> None:
        assert self._file is not None and self._path is not None
        index = np.full((CHUNKS, INDEX_ENTRY // 8), MISSING, "<u8")
        index[: len(self._index)] = self._index
        content = index.tobytes()
        self._file.write(content + crc32c(content).to_bytes(CHECKSUM, "little"))
        self._file.close()
        atomic.commit_file(self._path, urls.join(self.directory, self.files[-1]))
        self._stack.close()
        self._index, self._file, self._path = [], None, None

    def _finish(self) -> None:
        rest = np.concatenate([*self._pending, np.empty(0, self._dtype)])
        if len(rest):
            padded = np.zeros(-(-len(rest) // CHUNK) * CHUNK, self._dtype)
            padded[: len(rest)] = rest
            self._encode(padded)
        if self._file is not None:
            self._end_file()
        atomic.commit_bytes(encoded_metadata(self._dtype.name), urls.join(self.directory, METADATA_FILE))
        self.files.append(METADATA_FILE)


def metadata(dtype: str) -> dict[str, Any]:
    """Return the zarr.json of an array."""
    sharding = {"chunk_shape": [CHUNK], "codecs": COMPRESSION}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [LENGTH],
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK * CHUNKS]}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "fill_value": 0,
    }


def encoded_metadata(dtype: str) -> bytes:
    """Return the content of zarr.json as TensorStore writes it, with every setting of the codecs."""
    import tensorstore

    specification = {"driver": "zarr3", "kvstore": {"driver": "memory"}, "metadata": metadata(dtype)}
    array = tensorstore.open(specification, create=True).result()
    assert array.kvstore is not None
    written = json.loads(array.kvstore[METADATA_FILE])
    return json.dumps(written, sort_keys=True, separators=(",", ":")).encode()


def _encoder(dtype: str) -> Any:
    """Return an array in memory whose chunks are encoded like the inner chunks of a file."""
    import tensorstore

    specification = {
        "driver": "zarr3",
        "kvstore": {"driver": "memory"},
        "metadata": {
            "shape": [AT_ONCE * CHUNK],
            "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK]}},
            "codecs": COMPRESSION,
        },
        "store_data_equal_to_fill_value": True,
    }
    return tensorstore.open(specification, create=True).result()
