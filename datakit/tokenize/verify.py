"""Compares the encoder with the reference on a sample of each partition; the first difference stops the run.

The sample is fixed by the partition alone (not by batches): 16 documents evenly spread over the rows, and, of the text
laid end to end, a window of 8 KiB in every 2.7 MB, which is 0.3 % of the bytes. A document that fits a window is taken
whole, and the ids that are about to be written are compared; of a longer one only the window is encoded, by both, since
the reference needs 20 times as long as the encoder for everything: 16 novels would cost more than all the others.

Cost: about 0.3 % of the bytes plus up to 128 KiB a partition, at the reference's speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import tokenizers

from datakit.errors import TokenizerError
from datakit.tokenize.batches import TextBatch
from datakit.tokenize.tokenizer import Encoder

DOCUMENTS = 16
WINDOW_BYTES = 8192
SHARE = 0.003
PERIOD = round(WINDOW_BYTES / SHARE)


@dataclass
class Verification:
    """Checks the batches of one partition, in order. Counts what it has compared."""

    reference: tokenizers.Tokenizer
    encoder: Encoder
    rows: int
    place: str
    documents: int = 0
    text_bytes: int = 0
    _spread: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self._spread = np.unique((2 * np.arange(DOCUMENTS) + 1) * self.rows // (2 * DOCUMENTS))

    def check(self, batch: TextBatch, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Compare this batch's part of the sample. `ids`, `lengths`: what the encoder gave. Raises TokenizerError."""
        ends = np.cumsum(lengths)
        for index, start, stop in self._sample(batch):
            begin, end = int(batch.offsets[index]), int(batch.offsets[index + 1])
            window = batch.data[begin + start : begin + stop].tobytes().decode("utf-8", errors="ignore")
            expected = self.reference.encode(window, add_special_tokens=False).ids
            if stop - start == end - begin:
                found = ids[ends[index] - lengths[index] : ends[index]]
            else:
                found, _ = self.encoder.encode_batch([window])
            if len(found) != len(expected) or (found != np.array(expected, found.dtype)).any():
                self._refuse(batch.ids[index].as_py(), start, expected, found)
            self.documents += 1
            self.text_bytes += stop - start

    def _sample(self, batch: TextBatch) -> Iterator[tuple[int, int, int]]:
        """(document in the batch, first and last byte in it) of what is compared."""
        starts = batch.offsets - batch.offsets[0] + batch.position
        count = len(starts) - 1
        spread = self._spread[(self._spread >= batch.row) & (self._spread < batch.row + count)] - batch.row
        # a document meets a window if one begins in it, or if it begins in one
        begun = -(-starts // PERIOD)
        meets = (begun[1:] > begun[:-1]) | (starts[:-1] % PERIOD < WINDOW_BYTES)
        for index in np.union1d(np.flatnonzero(meets), spread).tolist():
            length = int(starts[index + 1] - starts[index])
            if length <= WINDOW_BYTES:
                yield index, 0, length
                continue
            if index in spread:
                yield index, 0, WINDOW_BYTES
            yield from self._windows(index, int(starts[index]), length)

    def _windows(self, index: int, start: int, length: int) -> Iterator[tuple[int, int, int]]:
        for number in range(start // PERIOD, (start + length - 1) // PERIOD + 1):
            first = max(number * PERIOD - start, 0)
            last = min(number * PERIOD + WINDOW_BYTES - start, length)
            if first < last:
                yield index, first, last

    def _refuse(self, document: str, start: int, expected: list[int], found: np.ndarray) -> None:
        pairs = zip(expected, found.tolist(), strict=False)
        position = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        position = min(len(expected), len(found)) if position is None else position
        raise TokenizerError(
            f"{self.encoder.name} and `tokenizers` differ: {self.place}, document {document}, from token {position} of "
            f"the text that begins at its byte {start}; set tokenize.encoder to 'tokenizers', which is slower and right"
        )
