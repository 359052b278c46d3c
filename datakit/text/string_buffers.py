"""Exposes an Arrow string column's bytes and offsets as numpy arrays, without creating a Python object per document."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def string_buffers(texts: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of N strings or binary values, uint8, and the offsets into these bytes, int64 [N + 1].
    A null counts as empty. Both arrays are read-only, because numba would compile its kernels a second time for
    writable arrays. Columns of several chunks are copied, and 32-bit offsets are converted; nothing else is copied.
    """
    if pa.types.is_string(texts.type):
        texts = texts.cast(pa.large_string())
    elif pa.types.is_binary(texts.type):
        texts = texts.cast(pa.large_binary())
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.chunk(0) if texts.num_chunks == 1 else texts.combine_chunks()
    if not len(texts):
        return _read_only(b"", np.uint8), _read_only(bytes(8), np.int64)
    _, offsets, data = texts.buffers()
    window = _read_only(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return _read_only(b"" if data is None else data, np.uint8), window


def _read_only(buffer: pa.Buffer | bytes, kind: type[np.generic]) -> np.ndarray:
    view = np.frombuffer(buffer, kind)
    view.flags.writeable = False
    return view
