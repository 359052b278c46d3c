"""Encodes a stretch of text that has no safe place to cut: word by word, and huge words in overlapping windows.

The encoding is exact, and takes linear time unless neighboring windows share no token (see below). In this file, a word
is a piece made by the pre-tokenizer. A tokenizer with `ignore_merges` encodes a word as one token if the vocabulary
contains it; such words are shorter than a window. Every other word is encoded by byte-pair merges alone: the pair of
lowest rank is merged first, the leftmost one among equals. Any run of consecutive tokens in the result is the encoding
of its own text, because no merge crossed the ends of the run. Two encodings can be joined at a token that both have at
the same place:

    if BPE(AB) = A'B' and BPE(BC) = B'C', and B' has at least one token, then BPE(ABC) = A'B'C'.

Proof: assume that encoding ABC merges a pair across a border, and consider the first such merge, say between A and B.
Before this merge, each part was merged as if it were alone, and the merges in A and B were in the order of their ranks,
as they are when AB is encoded. So encoding AB reaches the same state of A and B. The pair across the border has the
lowest rank in ABC, hence also in AB, which has fewer pairs. So encoding AB would also have merged this pair, which
contradicts BPE(AB) = A'B', where no merge crosses the border. The argument for the border between B and C is the same.
A and C are never adjacent, because B' is between them.

Therefore a word of more than 16 KiB is encoded in overlapping windows of that size. Each window starts at a token of
the previous window, and the two are joined at the first token that they share. If they share none, the word is encoded
again in larger windows, if necessary as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from datakit.tokenize.encoders.added_tokens import cut_at_added
from datakit.tokenize.encoders.base import Encoder
from datakit.tokenize.encoders.normalizing import PIECE_CHARACTERS, normalized

WINDOW_BYTES = 16 << 10
OVERLAP = 4  # neighboring windows overlap by at least a quarter of their size
LOOK_CHARACTERS = 1 << 15
LOOK_BEYOND = 16  # number of characters; no contraction of a supported pre-tokenizer (`safe_cuts.py`) is this long
FLUSH_CHARACTERS = 1 << 20
RENEW_BYTES = 32 << 20
FLUSH_WORDS = 1 << 16


@dataclass
class WordEncoder:
    """An encoder that encodes stretches of text word by word.

    renew: a function that returns a new encoder, which encodes each text as one word, by merges alone. sizes: each
    token's number of bytes, indexed by id. normalize: a function that applies the tokenizer's normalization to a text.
    pieces: a function that pre-tokenizes a text as the tokenizer does, and returns the words' ranges of characters.
    raw, normalized: the ids, by string, of the added tokens that are matched before and after normalization,
    respectively; None for a token whose string is ordinary text. whole: the encoder of words that are shorter than a
    window; None if the tokenizer encodes these, too, by merges alone.
    """

    renew: Callable[[], Encoder]
    sizes: np.ndarray
    normalize: Callable[[str], str]
    pieces: Callable[[str], list[tuple[int, int]]]
    raw: dict[str, int | None]
    normalized: dict[str, int | None]
    whole: Encoder | None = None
    window: int = WINDOW_BYTES
    look: int = LOOK_CHARACTERS
    normalize_size: int = PIECE_CHARACTERS
    _words: list[str] = field(default_factory=list)
    _fixed: list[tuple[int, int]] = field(default_factory=list)  # for each added token: (number of words before it, id)
    _size: int = 0
    _spent: int = 0  # number of bytes of long words encoded since `renew` was last called

    def __post_init__(self) -> None:
        self.encoder: Encoder = self.renew()

    def encode(self, text: str) -> np.ndarray:
        """Return the ids, uint32 [T], of a stretch between two safe places."""
        self._words, self._fixed, self._size = [], [], 0
        out: list[np.ndarray] = [np.empty(0, np.uint32)]
        for stretch, added in cut_at_added(text, self.raw):
            if len(self._fixed) >= FLUSH_WORDS:
                out.append(self._flush())
            if added is not None:
                self._fixed.append((len(self._words), added))
                continue
            for part, inner in cut_at_added(normalized(stretch, self.normalize, self.normalize_size), self.normalized):
                if len(self._fixed) >= FLUSH_WORDS:
                    out.append(self._flush())
                if inner is not None:
                    self._fixed.append((len(self._words), inner))
                    continue
                for word in self._split(part):
                    if len(word) >= self.window:
                        out += [self._flush(), self.encode_word(word)]
                        continue
                    self._words.append(word)
                    self._size += len(word)
                    if self._size >= FLUSH_CHARACTERS or len(self._words) >= FLUSH_WORDS:
                        out.append(self._flush())
        return np.concatenate([*out, self._flush()])

    def _flush(self) -> np.ndarray:
        ids, lengths = (self.whole or self.encoder).encode_batch(self._words)
        if self._fixed:
            ends = np.concatenate([[0], np.cumsum(lengths)])
            places, values = (np.array(column) for column in zip(*self._fixed, strict=True))
            ids = np.insert(ids, ends[places], values.astype(np.uint32))
        self._words, self._fixed, self._size = [], [], 0
        return ids

    def _split(self, text: str) -> Iterator[str]:
        """Yield the words of a text, pre-tokenizing one view (a range of the text) at a time.

        From each view, only the words that cannot be changed by the text after the view are taken. The end of a word
        depends on the word's characters, on the character after it, on the white space around it, and on the characters
        that a contraction may need. So a word is settled if it ends before a character that is not white space and that
        has LOOK_BEYOND more characters after it in the view.
        """
        if text.isascii() and text[1:].isalpha() and (text[0].isalpha() or text[0] == " "):
            yield text  # a frequent case: letters, possibly after one space, are one word
            return
        start, size = 0, self.look
        while start < len(text):
            view = text[start : start + size]
            whole = start + size >= len(text)
            ranges = [entry for entry in self.pieces(view) if entry[1] <= _settled(view, whole)]
            if not ranges and not whole:
                stop = self._end_of_run(text, start, start + size)
                if stop is None:
                    size *= 8
                    continue
                ranges = [(0, stop - start)]
            for first, last in ranges:
                yield text[start + first : start + last]
            if not ranges:
                return
            start, size = start + ranges[-1][1], self.look

    def _end_of_run(self, text: str, start: int, stop: int) -> int | None:
        """Return the end of the word that starts at `start` and reaches `stop` or beyond; None if a larger view is
        needed.

        The word's last two characters before `stop` determine its kind (except for a line break after punctuation), so
        the search continues from these two, one view at a time.
        """
        view = text[start:stop]
        if len(self.pieces(view)) != 1:
            return None
        blank = view.isspace()
        size = self.look
        while blank or not (text[stop - 2].isspace() or text[stop - 1].isspace()):
            begin = stop - 2
            view = text[begin : begin + size]
            whole = begin + size >= len(text)
            end = self.pieces(view)[0][1]
            if end <= _settled(view, whole):
                return begin + end
            if end == len(view):
                stop, blank = begin + end, blank and view.isspace()
            size = self.look if end == len(view) else size * 8
        return None

    def encode_word(self, word: str) -> np.ndarray:
        """Return the ids of one word, uint32 [T]. A word longer than a window is encoded in windows."""
        data = np.frombuffer(word.encode(), np.uint8)
        window = self.window
        while window < len(data):
            found = self._in_windows(data, window)
            if found is not None:
                return found
            window *= 8
        return self._ids(data, 0, len(data))

    def _ids(self, data: np.ndarray, start: int, stop: int) -> np.ndarray:
        self._spent += stop - start
        # The encoder caches every word, but long words rarely recur. A new encoder starts with an empty cache.
        if self._spent > RENEW_BYTES:
            self.encoder, self._spent = self.renew(), stop - start
        return self.encoder.encode_batch([data[start:stop].tobytes().decode()])[0]

    def _in_windows(self, data: np.ndarray, window: int) -> np.ndarray | None:
        """Encode a word, given as UTF-8 bytes, in overlapping windows of `window` bytes. Return the word's ids, or None
        if two neighboring windows share no token.
        """
        out: list[np.ndarray] = []
        stop = _character_start(data, window)
        ids = self._ids(data, 0, stop)
        starts = self._starts(ids, 0)
        while stop < len(data):
            usable = starts[starts <= stop - window // OVERLAP]
            usable = usable[data[usable] & 0xC0 != 0x80]
            if not len(usable) or usable[-1] + window <= stop:
                return None
            begin = int(usable[-1])
            stop = _character_start(data, begin + window)
            new = self._ids(data, begin, stop)
            new_starts = self._starts(new, begin)
            _, old_at, new_at = np.intersect1d(starts, new_starts, assume_unique=True, return_indices=True)
            same = np.flatnonzero(ids[old_at] == new[new_at])
            if not len(same):
                return None
            joint = same[0]
            out.append(ids[: old_at[joint]])
            ids, starts = new[new_at[joint] :], new_starts[new_at[joint] :]
        return np.concatenate([*out, ids])

    def _starts(self, ids: np.ndarray, begin: int) -> np.ndarray:
        ends = np.cumsum(self.sizes[ids])
        return begin + ends - self.sizes[ids]


def _settled(view: str, whole: bool) -> int:
    """Return the position in a view up to which words are final, whatever text follows the view. `whole` is True if no
    text follows it.
    """
    return len(view) if whole else len(view[:-LOOK_BEYOND].rstrip()) - 1


def _character_start(data: np.ndarray, place: int) -> int:
    """Return the start of the character that contains byte `place`, or the end of the data if `place` is beyond it."""
    if place >= len(data):
        return len(data)
    while data[place] & 0xC0 == 0x80:
        place -= 1
    return place
