"""Keeps the results of a phase's tasks in memory as JSON, and decodes a result each time it is read.

A result with a few counters and one file takes 800 bytes as Python objects and a fifth of that as JSON. Since there may
be 100,000 tasks, the driver keeps only the JSON; decoding a result takes a few microseconds. Since every result is
decoded from JSON, a plan sees equal values whether a result comes from this run or from an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import overload

import msgspec
import xxhash

from datakit.engine.task import TaskResult

pack: Callable[[TaskResult], bytes] = msgspec.json.Encoder().encode
unpack: Callable[[bytes], TaskResult] = msgspec.json.Decoder(TaskResult).decode


class Results(Sequence[TaskResult]):
    """A sequence of results that are stored as JSON and decoded on access."""

    def __init__(self, packed: Iterable[bytes]) -> None:
        self._packed = list(packed)

    def hash_into(self, digest: xxhash.xxh3_128) -> None:
        """Add all results to the hash that `digest` computes."""
        for packed in self._packed:
            digest.update(packed)

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, index: int) -> TaskResult: ...
    @overload
    def __getitem__(self, index: slice) -> Results: ...
    def __getitem__(self, index: int | slice) -> TaskResult | Results:
        if isinstance(index, slice):
            return Results(self._packed[index])
        return unpack(self._packed[index])
