"""Finds the stretches of substrings of texts, as tables (see `anchor_kernels.py`).

A k-gram has half the bytes of a substring. Longer ones would be repeated less often in stretches that are not copies,
but a text would have more anchors: on average two for each `size - k + 2` bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pyarrow as pa

from datakit.passages.find_passages import require_short
from datakit.passages.phase_data import Search
from datakit.passages.substrings import anchor_kernels
from datakit.passages.substrings.anchor_kernels import Settings, Stretches, Work
from datakit.passages.substrings.polynomial import BASES, powers
from datakit.passages.substrings.rows import STRETCH, table_of
from datakit.text.hash_mixing import GOLDEN
from datakit.text.string_buffers import string_buffers

BLOCK, LEAST_ROOM = 1 << 16, 1 << 18
KINDS = (np.int64, np.int64, np.int64, np.int64, np.uint64, np.uint64, np.uint64, np.uint8)  # of Stretches


@cache
def settings_of(size: int, number: int) -> Settings:
    """Return the settings of a search for kernels. size: the bytes of a substring. number: the number of the search,
    which is hashed as well, so that substrings of different searches never have equal hashes.
    """
    first, second = (powers(base, 2 * size + 1) for base in BASES)
    seed = np.uint64(number * int(GOLDEN) % (1 << 64))
    return Settings(size, size // 2, first, second, seed, max(BLOCK, 4 * size))


def find_stretches(texts: pa.Array | pa.ChunkedArray, settings: Settings) -> Iterator[Stretches]:
    """Yield the stretches of texts in their order. The arrays are valid until the next ones are requested. Raises
    TaskError if a text is too long.
    """
    data, offsets = string_buffers(texts)
    longest = require_short(offsets)
    block = min(settings.block, max(1, longest))
    room = min(max(LEAST_ROOM, block), max(1, int(offsets[-1] - offsets[0])))
    length = block + settings.size
    work = Work(*(np.empty(length + 1, kind) for kind in (np.uint64, np.uint64, np.uint64, np.int64)))
    found = Stretches(*(np.empty(room, kind) for kind in KINDS))
    text = position = 0
    while text < len(offsets) - 1:
        count, text, position = anchor_kernels.find_stretches(data, offsets, settings, work, text, position, found)
        if count:
            yield Stretches(*(column[:count] for column in found))


def as_table(found: Stretches, rows: np.ndarray, search: Search) -> pa.Table:
    """Return stretches as rows of STRETCH. rows: the row number of each text."""
    return table_of(
        STRETCH, found.anchors, found.high, found.low, rows[found.texts], found.starts, found.substrings, found.repeats,
        found.edges, np.full(len(found.texts), search.number),
    )  # fmt: skip


def warm() -> None:
    """Load the kernels from numba's disk cache, or compile them."""
    for _ in find_stretches(pa.array(["a" * 32], pa.large_string()), settings_of(32, 0)):
        pass
