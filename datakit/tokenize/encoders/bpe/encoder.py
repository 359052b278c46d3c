"""Encodes texts with datakit's own kernels.

The ids are those of `tokenizers`, the reference; on a sample of each partition, they are compared
(tokenize/reference_check.py). The kernels read the bytes of a column of texts where they lie and write ids to a buffer,
so neither a Python string nor an object for a word is made. A text is never cut into parts, however long it is.

If the tokenizer normalizes texts, a text that NFC may change is first cut at the added tokens that are matched before
normalization. Each stretch between them is normalized and then encoded like a text. The kernels leave a text to another
encoder if it has a word of more than 4 KiB, or an apostrophe before U+017F, which expressions of the cl100k kind match
as an `s`.

Threads take turns, since all encoders of a tokenizer share its cache of words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np

from datakit.tokenize.encoders.added_tokens import cut_at_added
from datakit.tokenize.encoders.base import OWN, Encoder
from datakit.tokenize.encoders.bpe.batch import Batch, output
from datakit.tokenize.encoders.bpe.character_tables import combining_classes
from datakit.tokenize.encoders.bpe.encode_kernel import ModelAddresses, find_unstable
from datakit.tokenize.encoders.bpe.memory_access import address_of
from datakit.tokenize.encoders.bpe.model import BpeModel
from datakit.tokenize.encoders.normalizing import pieces

VERSION = "1"
PIECE_CHARACTERS = 256  # in a piece of a text that is normalized; at least
EncodeTexts = Callable[[list[str]], tuple[np.ndarray, np.ndarray]]
Encoded = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class BpeEncoder:
    """The encoder for tokenizers that `model_of` supports. special_strings: "keep" or "text". normalize: brings a text
    into NFC. make_other: makes the encoder of the texts that the kernels leave, which takes some tenths of a second.
    """

    model: BpeModel = field(repr=False)
    special_strings: str
    normalize: Callable[[str], str] = field(repr=False)
    make_other: Callable[[], Encoder] = field(repr=False)
    name = OWN
    version = VERSION

    @cached_property
    def other(self) -> Encoder:
        return self.make_other()

    @cached_property
    def _out(self) -> np.ndarray:
        return output()

    @cached_property
    def _addresses(self) -> ModelAddresses:
        return self.model.addresses(self.model.added[self.special_strings])

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return self.encode_texts(texts, self._encode_left)

    def encode_texts(self, texts: Sequence[str], encode_left: EncodeTexts) -> tuple[np.ndarray, np.ndarray]:
        """Return what `encode_bytes` does for texts that are Python strings, without the texts that were left."""
        return self.encode_bytes(*_buffers([text.encode() for text in texts]), encode_left)[:2]

    def encode_bytes(self, data: np.ndarray, offsets: np.ndarray, encode_left: EncodeTexts) -> Encoded:
        """Encode N texts, given as in `string_buffers`. encode_left: encodes the texts that the kernels leave.

        Returns the ids of all texts, uint32 [T], the number of ids of each text, int64 [N], and the numbers of the
        texts that were left, int64.
        """
        with self.model.lock:
            return self._encode_bytes(data, offsets, encode_left)

    def _encode_bytes(self, data: np.ndarray, offsets: np.ndarray, encode_left: EncodeTexts) -> Encoded:
        batch = Batch.of(data, offsets, self._out)
        unstable = _unstable(batch) if self.model.normalizes else np.empty(0, np.int64)
        ids, lengths = batch.encode(self._addresses), batch.lengths
        left = np.setdiff1d(np.flatnonzero(batch.skipped), unstable)
        if len(unstable):
            *others, left_too = self._encode_unstable(_strings(data, offsets, unstable), encode_left)
            ids, lengths = _joined(ids, lengths, unstable, *others)
            unstable = unstable[left_too]
        if len(left):
            ids, lengths = _joined(ids, lengths, left, *encode_left(_strings(data, offsets, left)))
        return ids, lengths, np.union1d(left, unstable)

    def _encode_left(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        return self.other.encode_batch(texts)  # made when it is first needed

    def _encode_unstable(self, texts: list[str], encode_left: EncodeTexts) -> Encoded:
        """Normalize texts and encode them; see `encode_bytes`."""
        stretches, owners, added = [], [], []  # for each stretch: its text, the number of its document, an id or None
        for number, text in enumerate(texts):
            for stretch, token in cut_at_added(text, self.model.raw[self.special_strings]):
                stretches.append("" if token is not None else stretch)
                owners.append(number)
                added.append(token)
        batch = Batch.of(*_buffers(self._normalized(stretches)), self._out)
        ids = batch.encode(self.model.addresses(self.model.normalized[self.special_strings]))
        tokens = np.array([row for row, token in enumerate(added) if token is not None], np.int64)
        found = np.array([added[row] for row in tokens.tolist()], np.uint32)
        ids, sizes = _joined(ids, batch.lengths, tokens, found, np.ones(len(tokens), np.int64))
        lengths = np.bincount(owners, sizes, len(texts)).astype(np.int64)
        left = np.unique(np.array(owners, np.int64)[batch.skipped == 1])
        if len(left):
            kept = ~np.repeat(np.isin(np.arange(len(texts)), left), lengths)
            lengths[left] = 0
            ids, lengths = _joined(ids[kept], lengths, left, *encode_left([texts[number] for number in left.tolist()]))
        return ids, lengths, left

    def _normalized(self, texts: list[str]) -> list[bytes]:
        """Return texts in NFC. Only the pieces that NFC may change are normalized, because that takes much longer than
        to find them.
        """
        cut = [list(pieces(text, PIECE_CHARACTERS)) for text in texts]
        parts = [piece.encode() for one in cut for piece in one]
        for number in _unstable(Batch.of(*_buffers(parts), self._out)).tolist():
            parts[number] = self.normalize(parts[number].decode()).encode()
        remaining = iter(parts)
        return [b"".join(islice(remaining, len(one))) for one in cut]


def _unstable(batch: Batch) -> np.ndarray:
    """Return the numbers of the texts that NFC may change, and skip them in the batch."""
    find_unstable(batch.addresses(), np.uint64(address_of(combining_classes())))
    return np.flatnonzero(batch.skipped)


def _buffers(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of texts and the offsets into them, as `string_buffers` does."""
    offsets = np.cumsum([0, *map(len, texts)])
    return np.frombuffer(b"".join(texts), np.uint8), offsets


def _strings(data: np.ndarray, offsets: np.ndarray, rows: np.ndarray) -> list[str]:
    return [str(data[offsets[row] : offsets[row + 1]].data, "utf-8") for row in rows.tolist()]


def _joined(
    ids: np.ndarray, lengths: np.ndarray, left: np.ndarray, other_ids: np.ndarray, other_lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of all texts in their order, and their numbers. left: the numbers of the texts to which the other
    ids belong.
    """
    if not len(left):
        return ids, lengths
    lengths, others = lengths.copy(), np.zeros(len(lengths), bool)
    lengths[left], others[left] = other_lengths, True
    joined, by_other = np.empty(int(lengths.sum()), np.uint32), np.repeat(others, lengths)
    joined[~by_other], joined[by_other] = ids, other_ids
    return joined, lengths
