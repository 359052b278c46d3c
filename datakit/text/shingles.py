"""Columns of text to sets of shingles, straight from Arrow's buffers: no Python object a document.

Cost: 70 to 170 MB of text a CPU-second, most of it for sorting.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datakit.text import shingle_kernels
from datakit.text.string_buffers import string_buffers
from datakit.text.unicode_words import character_table


def shingle_sets(texts: pa.Array | pa.ChunkedArray, ngram: int) -> tuple[np.ndarray, np.ndarray]:
    """Each document's set of shingles, sorted: (offsets int64 [N + 1], values uint64).

    Memory: 8 bytes a shingle; before repeats are gone, up to 4 times the bytes of the texts are reserved.
    """
    data, window = string_buffers(texts)
    most = (int(window[-1] - window[0]) + 1) // 2  # a word and what parts it from the next take two bytes at least
    values, ends = np.empty(most + len(window), np.uint64), np.zeros(len(window), np.int64)
    total = shingle_kernels.shingle_sets(data, window, character_table(), ngram, values, ends[1:])
    return ends, values[:total]


def warm() -> None:
    """Compile or load the kernels, so that no task does."""
    shingle_sets(pa.array(["eins zwei drei vier fünf sechs 七 八"], pa.large_string()), 5)
