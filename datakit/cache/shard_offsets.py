"""Converts a token position or document row, counted over a whole cache, into the index of a shard and the position or
row within that shard; raises IndexError if the position or row is out of range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from datakit.cache.lengths import starts_of
from datakit.storage.manifest import Partition

Stretch = tuple[int, int, int]  # index of the shard; start and end of a range of its tokens


class ShardOffsets:
    """The starts of all shards, in tokens and in rows (documents): int64 [shards + 1] each, ending with the total."""

    def __init__(self, directory: str, partitions: Sequence[Partition]) -> None:
        self._directory = directory
        self.token_starts: np.ndarray = starts_of([partition.tokens or 0 for partition in partitions])
        self.row_starts: np.ndarray = starts_of([partition.rows for partition in partitions])
        self.tokens: int = int(self.token_starts[-1])
        self.rows: int = int(self.row_starts[-1])

    def locate(self, start: int, stop: int) -> list[Stretch]:
        """Return, in order, the stretches that make up tokens [start, stop) of the cache. Raises IndexError."""
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"tokens [{start}, {stop}) are out of range: {self._directory} has {self.tokens} tokens")
        return list(self._stretches(start, stop))

    def _stretches(self, start: int, stop: int) -> Iterator[Stretch]:
        index = int(np.searchsorted(self.token_starts, start, "right")) - 1
        while start < stop:
            begin, end = int(self.token_starts[index]), int(self.token_starts[index + 1])
            if begin < end:
                yield index, start - begin, min(stop, end) - begin
            start, index = max(start, min(stop, end)), index + 1

    def shard_of_row(self, row: int) -> tuple[int, int]:
        """Return the index of the shard that holds this row, and the row within the shard. Raises IndexError."""
        if not 0 <= row < self.rows:
            raise IndexError(f"document {row} is out of range: {self._directory} has {self.rows} documents")
        index = int(np.searchsorted(self.row_starts, row, "right")) - 1
        return index, row - int(self.row_starts[index])

    def shard_of_token(self, position: int) -> tuple[int, int]:
        """Return the index of the shard that holds a token, and the token's position in it. Raises IndexError."""
        if not 0 <= position < self.tokens:
            raise IndexError(f"token {position} is out of range: {self._directory} has {self.tokens} tokens")
        index = int(np.searchsorted(self.token_starts, position, "right")) - 1
        return index, position - int(self.token_starts[index])
