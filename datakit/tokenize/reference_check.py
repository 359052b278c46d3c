"""Compares the encoder with the reference (`tokenizers`) on a sample of each partition; the first difference stops the
run. The sample depends only on the partition, not on how it is divided into batches. It consists of a window of 4 KiB
in every 4.1 MB of the texts laid end to end, which is 0.1 % of the bytes, and of one window in each of 16 documents
evenly spread over the rows. The reference takes about thirty times as long as the encoder, so the windows of the 16
documents are only 0.5 to 4 KiB long and cover only another 0.1 % of the bytes. The position of such a window moves
evenly from the document's start (in the first of the 16) to the document's end (in the last). If a document with a
window is no longer than the window, the reference's ids for the whole document are compared with the ids about to be
written. If the document is longer, both libraries encode only the window (split_check.py compares some long documents
as a whole).

Cost: encoding 0.2 % of the bytes, but at least 8 KiB per partition, at the reference's speed: 6 % of the time of the
encoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from datakit.errors import TokenizerError
from datakit.tokenize.encoders.base import Encoder
from datakit.tokenize.split_check import SplitVerification
from datakit.tokenize.text_batches import TextBatch

DOCUMENTS = 16
WINDOW_BYTES = 4096
SMALLEST_WINDOW = 512
SHARE = 0.001
PERIOD = round(WINDOW_BYTES / SHARE)


@dataclass(frozen=True)
class _Sample:
    """Bytes [start, stop) of the document in row `row` of a batch. `whole` is True if these bytes are the whole
    document.
    """

    row: int
    start: int
    stop: int
    whole: bool


@dataclass
class Verification:
    """Checks the batches of one partition, in order. rows, partition_bytes: the numbers of documents and of bytes of
    text in the partition. place: the partition's name in error messages. split: the check of the documents that are
    encoded in parts, if any. documents, text_bytes: the numbers of documents and of bytes of text that have been
    compared so far.
    """

    reference: Encoder
    encoder: Encoder
    rows: int
    partition_bytes: int
    place: str
    split: SplitVerification | None = None
    documents: int = 0
    text_bytes: int = 0
    _spread: np.ndarray = field(init=False)
    _window: int = field(init=False)

    def __post_init__(self) -> None:
        self._spread = np.unique((2 * np.arange(DOCUMENTS) + 1) * self.rows // (2 * DOCUMENTS))
        share = int(self.partition_bytes * SHARE / DOCUMENTS)
        self._window = min(max(share, SMALLEST_WINDOW), WINDOW_BYTES)

    def check(self, batch: TextBatch, ids: np.ndarray, lengths: np.ndarray, cut: np.ndarray) -> None:
        """Compare the encoder's ids with the reference's ids, for the part of the sample that lies in this batch. ids,
        lengths: the encoder's ids for the whole batch, and the number of ids of each document. cut: the rows of the
        documents that were encoded in parts. Raises TokenizerError at the first difference.
        """
        if self.split is not None:
            self.split.check(batch, ids, lengths, cut)
        samples = list(self._sample(batch))
        if not samples:
            return
        texts = [_text(batch, sample) for sample in samples]
        expected, counts = self.reference.encode_batch(texts)
        again = self.encoder.encode_batch(
            [text for text, sample in zip(texts, samples, strict=True) if not sample.whole]
        )
        parts = iter(_split(*again))
        ends = np.cumsum(lengths)
        for sample, wanted in zip(samples, _split(expected, counts), strict=True):
            row = sample.row
            found = ids[ends[row] - lengths[row] : ends[row]] if sample.whole else next(parts)
            if len(found) != len(wanted) or (found != wanted).any():
                self._refuse(batch.ids[row].as_py(), sample.start, wanted.tolist(), found)
            self.documents += 1
            self.text_bytes += sample.stop - sample.start

    def compare(self, names: Sequence[str], texts: Sequence[str], ids: np.ndarray, lengths: np.ndarray) -> None:
        """Compare `ids`, the encoder's ids for `texts`, with the reference's. names: the id of each text's document.
        lengths: the number of ids of each text. Raises TokenizerError at the first difference.
        """
        expected, counts = self.reference.encode_batch(texts)
        for name, wanted, found in zip(names, _split(expected, counts), _split(ids, lengths), strict=True):
            if len(found) != len(wanted) or (found != wanted).any():
                self._refuse(name, 0, wanted.tolist(), found)
        self.documents += len(set(names))
        self.text_bytes += sum(len(text.encode()) for text in texts)

    def _sample(self, batch: TextBatch) -> Iterator[_Sample]:
        starts = batch.offsets - batch.offsets[0] + batch.position
        count = len(starts) - 1
        spread = self._spread[(self._spread >= batch.row) & (self._spread < batch.row + count)] - batch.row
        # a document and a window overlap if one of them starts inside the other
        begun = -(-starts // PERIOD)
        overlaps = (begun[1:] > begun[:-1]) | (starts[:-1] % PERIOD < WINDOW_BYTES)
        for row in np.union1d(np.flatnonzero(overlaps), spread).tolist():
            length = int(starts[row + 1] - starts[row])
            chosen = row in spread
            if length <= (WINDOW_BYTES if overlaps[row] else self._window):
                yield _Sample(row, 0, length, True)
                continue
            if chosen:
                number = int(np.searchsorted(self._spread, row + batch.row))
                start = (length - self._window) * number // (DOCUMENTS - 1) if number < DOCUMENTS else 0
                yield _Sample(row, start, start + self._window, False)
            for start, stop in self._windows(int(starts[row]), length):
                yield _Sample(row, start, stop, False)

    def _windows(self, start: int, length: int) -> Iterator[tuple[int, int]]:
        for number in range(start // PERIOD, (start + length - 1) // PERIOD + 1):
            first = max(number * PERIOD - start, 0)
            last = min(number * PERIOD + WINDOW_BYTES - start, length)
            if first < last:
                yield first, last

    def _refuse(self, document: str, start: int, expected: list[int], found: np.ndarray) -> None:
        pairs = zip(expected, found.tolist(), strict=False)
        position = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        position = min(len(expected), len(found)) if position is None else position
        raise TokenizerError(
            f"{self.encoder.name} and `tokenizers` give different ids in {self.place}, document {document}, first at "
            f"token {position}, counted from byte {start} of the text; set tokenize.encoder to 'tokenizers', which is "
            "slower but exact"
        )


def _text(batch: TextBatch, sample: _Sample) -> str:
    begin = int(batch.offsets[sample.row])
    return batch.data[begin + sample.start : begin + sample.stop].tobytes().decode("utf-8", errors="ignore")


def _split(ids: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(ids, np.cumsum(lengths)[:-1]) if len(lengths) else []
