"""What the tasks of a phase came to, packed.

A result of a few counters and one file is 800 bytes as Python objects and a fifth of that as JSON, so the driver of
100,000 tasks keeps JSON, as the ledger does, and a plan that looks at a result gets it decoded: some microseconds each
time. So a plan sees the same values, whether a result is of this run or was left by an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

import msgspec
import xxhash

from datakit.engine.task import TaskResult

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(TaskResult)

pack = _ENCODER.encode
unpack = _DECODER.decode


class Results(Sequence[TaskResult]):
    """Packed results, in order."""

    def __init__(self, packed: Iterable[bytes]) -> None:
        self._packed = list(packed)

    def enter(self, digest: xxhash.xxh3_128) -> None:
        """Feed them to a checksum."""
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
