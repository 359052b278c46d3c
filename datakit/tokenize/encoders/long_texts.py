"""Decides how a long document is encoded: whole, in parts cut at safe places, or word by word where there are none.

Unless a document is encoded whole, time and memory are linear in its length. A document longer than PART_BYTES is cut
at safe places (safe_cuts.py), and its parts are encoded like any other texts. A stretch longer than PART_BYTES without
a safe place (a character repeated a million times, text in a script without spaces) is encoded word by word
(long_words.py). Both methods are proven to be exact for the tokenizers that they support. With any other tokenizer,
documents are encoded whole, and the contract records the reason. Byte-pair encoding of a word of n bytes takes time
proportional to n log n, and more if the word exceeds the CPU's caches: words of 16 MB took 2 to 5 times as long per
byte as words of 1 MB (measured). Huge words are therefore encoded in windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from datakit.tokenize.encoders.base import OWN, Encoder
from datakit.tokenize.encoders.long_words import WordEncoder
from datakit.tokenize.encoders.safe_cuts import Splitter
from datakit.tokenize.text_batches import BATCH_BYTES, TextBatch

if TYPE_CHECKING:
    from datakit.tokenize.encoders.bpe.encoder import BpeEncoder

PART_BYTES = 256 << 10
UTF8_MOST = 4  # maximum number of bytes per character


@dataclass
class LongTexts:
    """One tokenizer's encoder for texts of any length. If `splitter` is None, every text is encoded whole, and `reason`
    states why. If `make_words` is None, stretches without safe places are encoded whole. datakit's own encoder encodes
    long texts whole in linear time and cuts only those that its kernels leave; if `cuts` is True, it cuts all.
    """

    encoder: Encoder
    splitter: Splitter | None
    make_words: Callable[[], WordEncoder] | None
    reason: str = ""
    part_bytes: int = PART_BYTES
    cuts: bool = False

    @cached_property
    def words(self) -> WordEncoder:
        """The encoder of stretches without safe places, made on first use: it may load another tokenizer."""
        assert self.make_words is not None
        return self.make_words()

    @property
    def made_words(self) -> WordEncoder | None:
        """The encoder for stretches without safe places; None if no text has needed it yet."""
        return self.__dict__.get("words")

    @cached_property
    def cutting(self) -> LongTexts:
        """An encoder that cuts long texts even if `encoder` need not."""
        return replace(self, cuts=True) if self._whole else self

    @property
    def _whole(self) -> BpeEncoder | None:
        """The encoder of texts of any length, if there is one."""
        return cast("BpeEncoder", self.encoder) if self.encoder.name == OWN and not self.cuts else None

    def encode_documents(self, batch: TextBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the ids of a batch of documents, uint32 [T], the number of ids of each document, int64 [N], and the
        rows of those that were encoded in parts, int64.
        """
        sizes = np.diff(batch.offsets)
        long = np.flatnonzero(sizes > self.part_bytes) if self.splitter is not None else np.empty(0, np.int64)
        if whole := self._whole:
            ids, lengths, left = whole.encode_bytes(batch.data, batch.offsets, self.cutting.encode_batch)
            return ids, lengths, np.intersect1d(long, left)
        if self.splitter is None or not len(long):
            return *self.encoder.encode_batch(batch.strings()), long
        return *self._encode(batch.data, batch.offsets, self.splitter), long

    def encode_text(self, text: str) -> np.ndarray:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode texts of any length. Return the ids of all texts, uint32 [T], and the number of ids of each text,
        int64 [N].
        """
        if whole := self._whole:
            return whole.encode_texts(texts, self.cutting.encode_batch)
        if self.splitter is None or max(map(len, texts), default=0) * UTF8_MOST <= self.part_bytes:
            return self.encoder.encode_batch(texts)
        encoded = [text.encode() for text in texts]
        offsets = np.concatenate([[0], np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))])
        return self._encode(np.frombuffer(b"".join(encoded), np.uint8), offsets, self.splitter)

    def _encode(self, data: np.ndarray, offsets: np.ndarray, splitter: Splitter) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.zeros(len(offsets) - 1, np.int64)
        out: list[np.ndarray] = [np.empty(0, np.uint32)]
        for owners, texts in self._batches(data, offsets, splitter):
            if self.make_words is not None and len(texts) == 1 and len(texts[0].encode()) > self.part_bytes:
                ids = self.words.encode(texts[0])
                counts = np.array([len(ids)])
            else:
                ids, counts = self.encoder.encode_batch(texts)
            out.append(ids)
            np.add.at(lengths, owners, counts)
        return np.concatenate(out), lengths

    def _batches(
        self, data: np.ndarray, offsets: np.ndarray, splitter: Splitter
    ) -> Iterator[tuple[list[int], list[str]]]:
        """Yield (indices, texts) for each batch of about BATCH_BYTES, in order. `indices` holds, for each text, the
        index of its document. A stretch that is longer than a part but has no safe place is a batch of its own.
        """
        owners: list[int] = []
        texts: list[str] = []
        size = 0
        for owner, start, stop in self._parts(data, offsets, splitter):
            uncut = stop - start > self.part_bytes
            if texts and (uncut or size >= BATCH_BYTES):
                yield owners, texts
                owners, texts, size = [], [], 0
            owners.append(owner)
            texts.append(str(data[start:stop].data, "utf-8"))
            size += stop - start
            if uncut:
                yield owners, texts
                owners, texts, size = [], [], 0
        if texts:
            yield owners, texts

    def _parts(self, data: np.ndarray, offsets: np.ndarray, splitter: Splitter) -> Iterator[tuple[int, int, int]]:
        """Yield (index of the document, start, stop) for every text to encode, in order. The text consists of the bytes
        [start, stop) of `data`.
        """
        for owner, (start, stop) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            if stop - start <= self.part_bytes:
                yield owner, start, stop
                continue
            for first, last in splitter.cuts(data[start:stop], self.part_bytes):
                yield owner, start + first, start + last
