"""Columns of text to sets of shingles, straight from Arrow's buffers: no Python object a document.

Cost: 70 to 170 MB of text a CPU-second, most of it for sorting.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datakit.text import shingle_kernels
from datakit.text.unicode_words import character_table


def text_buffers(texts: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """The bytes, uint8, and the offsets into them, int64 [N + 1], of a column of strings; no copy of a large_string."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks() if texts.num_chunks != 1 else texts.chunk(0)
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.chunk(0)
    if not pa.types.is_large_string(texts.type):
        texts = texts.cast(pa.large_string())
    if not len(texts):
        return np.frombuffer(b"\0", np.uint8), np.frombuffer(bytes(8), np.int64)
    _, offsets, data = texts.buffers()
    window = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data if data else b"\0", np.uint8), window


def shingle_sets(texts: pa.Array | pa.ChunkedArray, ngram: int) -> tuple[np.ndarray, np.ndarray]:
    """Each document's set of shingles, sorted: (offsets int64 [N + 1], values uint64).

    Memory: 8 bytes a shingle; before repeats are gone, up to 4 times the bytes of the texts are reserved.
    """
    data, window = text_buffers(texts)
    most = (int(window[-1] - window[0]) + 1) // 2  # a word and what parts it from the next take two bytes at least
    values, ends = np.empty(most + len(window), np.uint64), np.zeros(len(window), np.int64)
    total = shingle_kernels.shingle_sets(data, window, character_table(), ngram, values, ends[1:])
    return ends, values[:total]


def warm() -> None:
    """Compile or load the kernels, so that no task does."""
    shingle_sets(pa.array(["eins zwei drei vier fünf sechs 七 八"], pa.large_string()), 5)
