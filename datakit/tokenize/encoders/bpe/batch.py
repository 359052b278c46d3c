"""Runs the kernel on a batch of texts, and collects their ids from a buffer each time the kernel has filled it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datakit.tokenize.encoders.bpe.encode_kernel import (
    AT,
    DOCUMENT,
    DONE,
    FULL,
    IDS,
    SPARE,
    STRETCH,
    BatchAddresses,
    ModelAddresses,
    encode,
)
from datakit.tokenize.encoders.bpe.memory_access import address_of
from datakit.tokenize.encoders.bpe.merges import MOST_BYTES

ROOM = 1 << 19  # ids in the buffer, 2 MiB: about those of 2 MiB of text
assert ROOM > MOST_BYTES  # so that any word fits into an empty buffer


@dataclass(frozen=True, eq=False)
class Batch:
    """N texts, and what has been encoded of them; see `BatchAddresses`."""

    data: np.ndarray
    offsets: np.ndarray
    skipped: np.ndarray
    lengths: np.ndarray
    out: np.ndarray
    state: np.ndarray

    @classmethod
    def of(cls, data: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> Batch:
        """Return a batch of texts as in `string_buffers`, whose ids go to `out`."""
        count = len(offsets) - 1
        state = np.array([0, offsets[0], offsets[0], 0], np.uint64)
        numbers = np.ascontiguousarray(offsets, np.int64)
        return cls(data, numbers, np.zeros(count, np.uint8), np.zeros(count, np.int64), out, state)

    def addresses(self) -> BatchAddresses:
        """Return the addresses of the arrays. They are valid as long as this batch is."""
        numbers = (
            address_of(self.data), len(self.data), address_of(self.offsets), len(self.lengths),
            address_of(self.skipped), address_of(self.lengths), address_of(self.out), len(self.out) - SPARE,
            address_of(self.state),
        )  # fmt: skip
        return BatchAddresses(*(np.uint64(number) for number in numbers))

    def encode(self, model: ModelAddresses) -> np.ndarray:
        """Encode all texts that are not skipped. Return their ids, uint32 [T]; `lengths` then says how many belong to
        each text. Texts that the kernel leaves to another encoder are skipped, too.
        """
        parts, places = list[np.ndarray](), self.addresses()
        while (result := encode(places, model)) != DONE:
            parts.append(self._take())
            if result != FULL:
                _drop_last(parts, self._leave())
        parts.append(self._take())
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _take(self) -> np.ndarray:
        """Return a copy of the ids in the buffer, and empty it."""
        taken = self.out[: int(self.state[IDS])].copy()
        self.state[IDS] = 0
        return taken

    def _leave(self) -> int:
        """Skip the text at which the kernel has stopped. Return the number of its ids that were encoded before."""
        document = int(self.state[DOCUMENT])
        encoded = int(self.lengths[document])
        self.skipped[document], self.lengths[document] = 1, 0
        self.state[DOCUMENT] += 1
        self.state[AT] = self.state[STRETCH] = self.offsets[document + 1]
        return encoded


def _drop_last(parts: list[np.ndarray], count: int) -> None:
    """Remove the last `count` ids."""
    while count:
        last = parts.pop()
        if len(last) > count:
            parts.append(last[: len(last) - count])
        count -= min(count, len(last))


def output() -> np.ndarray:
    """Return a new buffer for ids."""
    return np.empty(ROOM + SPARE, np.uint32)
