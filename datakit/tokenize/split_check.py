"""Compares the token ids of documents encoded in parts with those of the reference, on a sample from each partition.

It is proven that cutting does not change any token id (encoders/safe_cuts.py, encoders/long_words.py), and a probe
confirms this when the contract is made. The sample is therefore small: the first two documents of the partition that
are encoded in parts. A partition is sorted by document id, and document ids are hashes, so this is a random choice.
Three windows of 512 bytes are cut out of each document. The code that encodes long documents encodes each window, but
in tiny parts, and the token ids are compared with those of the reference. If the document has at most 512 KiB and at
most a thousandth of the partition's bytes, the reference encodes the whole document instead, and its token ids are
compared with those that will be written.

The sample must find mistakes in the proof or in its code: kinds of places at which cutting changes ids. Tiny parts have
about 64 bytes, so the six windows contain about 50 cuts. A wrong kind of place that makes up one in 17 of all cuts is
found in a single partition with a probability of 95 %; if 10 partitions have long documents, so is one that makes up
one in 160.

The WordEncoder is checked only in tasks that use it, because it loads a tokenizer first, which takes 0.5 s of CPU time
(measured).

Cost: in partitions with long documents, the reference encodes at most 0.2 % of the partition's bytes, or 3 KiB if that
is more. The three windows of a document are encoded in one call, because a call takes as long as encoding 1 KiB
(measured).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from datakit.errors import TokenizerError
from datakit.tokenize.encoders.base import Encoder
from datakit.tokenize.encoders.long_texts import LongTexts
from datakit.tokenize.text_batches import TextBatch

DOCUMENTS = 2
WHOLE_BYTES = 512 << 10
WHOLE_SHARE = 1000  # a document is compared as a whole if it has at most one in this many of the partition's bytes
WINDOW_BYTES = 512
TINY_PART_BYTES = 64


@dataclass
class SplitVerification:
    """Checks the long documents of one partition. partition_bytes: the number of bytes of text in the partition.
    documents, text_bytes: how many documents and how many bytes of text have been compared so far.
    """

    reference: Encoder
    texts: LongTexts
    place: str
    partition_bytes: int
    documents: int = 0
    text_bytes: int = 0

    def _tiny(self) -> LongTexts:
        """Return an encoder like `texts` that uses tiny parts, and the WordEncoder of `texts` if there is one."""
        words = self.texts.cutting.made_words
        return replace(
            self.texts.cutting, part_bytes=TINY_PART_BYTES, make_words=None if words is None else lambda: words
        )

    def check(self, batch: TextBatch, ids: np.ndarray, lengths: np.ndarray, cut: np.ndarray) -> None:
        """Compare the ids of the sampled documents in this batch with the reference's.

        ids, lengths: the encoder's ids for the whole batch, and the number of ids of each document. cut: the rows of
        the documents that were encoded in parts. Raises TokenizerError at the first difference.
        """
        ends = np.cumsum(lengths)
        most = min(WHOLE_BYTES, self.partition_bytes // WHOLE_SHARE)
        for row in cut[: DOCUMENTS - self.documents].tolist():
            start, stop = int(batch.offsets[row]), int(batch.offsets[row + 1])
            if stop - start <= most:
                found = [ids[ends[row] - lengths[row] : ends[row]]]
                self._compare(batch, row, [(start, stop)], found)
            else:
                firsts = (start, (start + stop - WINDOW_BYTES) // 2, stop - WINDOW_BYTES)
                self._compare(batch, row, [(first, first + WINDOW_BYTES) for first in firsts])
            self.documents += 1

    def _compare(
        self, batch: TextBatch, row: int, places: list[tuple[int, int]], found: list[np.ndarray] | None = None
    ) -> None:
        """Compare the encoder's ids for some ranges of the document in row `row` with the reference's. places: (first,
        last) for each range, in bytes of `batch.data`. found: the encoder's ids for each range, or None to encode the
        ranges in tiny parts.
        """
        texts = [batch.data[slice(*place)].tobytes().decode("utf-8", errors="ignore") for place in places]
        if found is None:
            tiny = self._tiny()
            found = [tiny.encode_text(text) for text in texts]
        expected, counts = self.reference.encode_batch(texts)
        self.text_bytes += sum(last - first for first, last in places)
        for place, ours, wanted in zip(places, found, np.split(expected, np.cumsum(counts)[:-1]), strict=True):
            if not np.array_equal(wanted, ours):
                self._refuse(batch, row, place)

    def _refuse(self, batch: TextBatch, row: int, place: tuple[int, int]) -> NoReturn:
        first, last = (edge - int(batch.offsets[row]) for edge in place)
        raise TokenizerError(
            f"{self.place}, document {batch.ids[row]}: when encoded in parts, bytes {first} to {last} get tokens "
            "that differ from the reference's; set normalize.max_document_bytes to "
            f"{self.texts.part_bytes} to leave out documents that must be encoded in parts, and report this as a "
            "bug in datakit, together with the name of the tokenizer"
        )
