"""Compares the token ids of documents encoded in parts with those of the reference, on a sample from each partition.

It is proven that cutting does not change any token id (encoders/safe_cuts.py, encoders/long_words.py), and a probe
confirms this when the contract is made. The sample is therefore small: the first two documents of the partition that
are encoded in parts. A partition is sorted by document id, and document ids are hashes, so this is a random choice.
Three windows of 2 KiB are cut out of each document. The code that encodes long documents encodes each window, but in
tiny parts, and the token ids are compared with those of the reference. If the document has at most 512 KiB and at most
a thousandth of the partition's bytes, the reference encodes the whole document instead, and its token ids are compared
with those that will be written.

The WordEncoder is checked only in tasks that use it, because it loads a tokenizer first, which takes 0.5 s of CPU time
(measured).

Cost: in partitions with long documents, the reference encodes at most 0.2 % of the partition's bytes, or 12 KiB if that
is more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from datakit.errors import TokenizerError
from datakit.tokenize.encoders.base import Encoder
from datakit.tokenize.encoders.long_texts import LongTexts
from datakit.tokenize.text_batches import TextBatch

DOCUMENTS = 2
WHOLE_BYTES = 512 << 10
WHOLE_SHARE = 1000  # a document is compared as a whole if it has at most one in this many of the partition's bytes
WINDOW_BYTES = 2048
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
        words = self.texts.made_words
        return replace(self.texts, part_bytes=TINY_PART_BYTES, make_words=None if words is None else lambda: words)

    def check(self, batch: TextBatch, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Compare the ids of the sampled documents in this batch with the reference's.

        ids, lengths: the encoder's ids for the whole batch, and the number of ids of each document. Raises
        TokenizerError at the first difference.
        """
        if self.texts.splitter is None:
            return
        ends = np.cumsum(lengths)
        most = min(WHOLE_BYTES, self.partition_bytes // WHOLE_SHARE)
        long = np.flatnonzero(np.diff(batch.offsets) > self.texts.part_bytes)
        for row in long[: DOCUMENTS - self.documents].tolist():
            start, stop = int(batch.offsets[row]), int(batch.offsets[row + 1])
            if stop - start <= most:
                found = ids[ends[row] - lengths[row] : ends[row]]
                self._compare(batch, row, (start, stop), found)
            else:
                for first in (start, (start + stop - WINDOW_BYTES) // 2, stop - WINDOW_BYTES):
                    self._compare(batch, row, (first, first + WINDOW_BYTES), None)
            self.documents += 1

    def _compare(self, batch: TextBatch, row: int, place: tuple[int, int], found: np.ndarray | None) -> None:
        """Compare the encoder's ids for bytes [first, last) of `batch.data` with the reference's. place: (first, last).
        found: the encoder's ids, or None to encode this range in tiny parts.
        """
        text = batch.data[slice(*place)].tobytes().decode("utf-8", errors="ignore")
        found = self._tiny().encode_text(text) if found is None else found
        expected = self.reference.encode_batch([text])[0]
        self.text_bytes += place[1] - place[0]
        if not np.array_equal(expected, found):
            first, last = (edge - int(batch.offsets[row]) for edge in place)
            raise TokenizerError(
                f"{self.place}, document {batch.ids[row]}: when encoded in parts, bytes {first} to {last} get tokens "
                "that differ from the reference's; set normalize.max_document_bytes to "
                f"{self.texts.part_bytes} to leave out documents that must be encoded in parts, and report this as a "
                "bug in datakit, together with the name of the tokenizer"
            )
