"""Implements the kernel that turns documents into vectors as fastText does: the mean of the vectors of their words, of
the n-grams of characters of each word, and of the n-grams of words.

The rules are those of `Dictionary::getLine`, `computeSubwords`, `addWordNgrams` and `Model::computeHidden` in fastText
0.9.2. Vectors are added in the same order and precision, so sums are equal bit by bit. A document counts as one line:
each newline is a space, and the line ends with the word `</s>`. Words are separated by space, tab, newline, vertical
tab, form feed, carriage return and NUL. A word `</s>` in a document ends the line; words that begin with `__label__`
and are no words of the model are ignored.

A word costs at most `longest` steps per character, however long it is.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.annotate.fasttext import fnv, settings, vocabulary
from datakit.annotate.fasttext.fnv import extended, fnv_step
from datakit.annotate.fasttext.settings import Settings
from datakit.annotate.fasttext.vocabulary import Vocabulary, slot_of
from datakit.text.numba_cache import Decorator, cached_njit

END = np.frombuffer(b"</s>", np.uint8)
PREFIX = np.frombuffer(b"__label__", np.uint8)
_BEGIN_WORD, _END_WORD = np.uint32(ord("<")), np.uint32(ord(">"))
_WORD_FACTOR = np.uint64(116049371)  # Dictionary::addWordNgrams
_CONTINUATION, _LEAD_BITS = np.uint32(0x80), np.uint32(0xC0)
_SIGN_BIT, _SIGN_BITS = np.uint64(0x80000000), np.uint64(0xFFFFFFFF00000000)
BLOCK = 1024  # rows that are found before they are added
_SPACE, _TAB, _RETURN, _NUL = 32, 9, 13, 0

kernel: Decorator = cached_njit(fnv, settings, vocabulary)


class Embedding(NamedTuple):
    """The part of a model that turns text into vectors. rows: float32 [vectors, dimension]. pruned: int32 [buckets],
    see `Dictionary.pruned`; empty if all buckets have vectors.
    """

    settings: Settings
    vocabulary: Vocabulary
    pruned: np.ndarray
    rows: np.ndarray


class Scratch(NamedTuple):
    """Scratch space. word: uint32 [longest piece + 2, at least 6]. codes: the words' hashes, uint64
    [bytes of all pieces / 2 + pieces + 1]; empty if the model uses no n-grams of words. found: int64 [BLOCK + 64].
    """

    word: np.ndarray
    codes: np.ndarray
    found: np.ndarray


@kernel
def _is_space(byte: np.uint8) -> bool:
    return bool(byte in (_SPACE, _NUL) or _TAB <= byte <= _RETURN)


@kernel
def _starts_with(data: np.ndarray, start: int, stop: int, other: np.ndarray) -> bool:
    """Return True if `data[start:stop]` starts with `other`."""
    same = stop - start >= len(other)
    for i in range(len(other) if same else 0):
        same &= data[start + i] == other[i]
    return same


@kernel
def _add_rows(vector: np.ndarray, rows: np.ndarray, found: np.ndarray, count: int) -> None:
    """Add the first `count` rows listed in `found` to the vector, in this order."""
    for i in range(count):
        row = rows[found[i]]
        for j in range(len(vector)):
            vector[j] += row[j]


@kernel
def _row_of_bucket(pruned: np.ndarray, bucket: np.uint64) -> np.int64:
    """Return the number of a bucket's vector among those of the buckets; it is negative if there is none."""
    return np.int64(pruned[bucket]) if len(pruned) else np.int64(bucket)


@kernel
def _find_character_ngrams(
    word: np.ndarray, first: int, size: int, limits: Settings, words: int, pruned: np.ndarray, found: np.ndarray
) -> tuple[int, int]:
    """Write the rows of the n-grams of characters that begin at `word[first]` or later to `found`, until the word ends
    or BLOCK rows are found. Return where to continue, and how many rows were written.

    word: the word with its marks of beginning and end, as `size` extended bytes. found: int64 [BLOCK + longest].
    """
    count, buckets, shortest, longest = 0, np.uint64(limits.buckets), limits.shortest, limits.longest
    while first < size and count < BLOCK:
        code, position, characters = fnv.BASIS, first, 1
        while position < size and characters <= longest:
            code = fnv_step(code, np.uint64(word[position]))
            position += 1
            while position < size and word[position] & _LEAD_BITS == _CONTINUATION:
                code = fnv_step(code, np.uint64(word[position]))
                position += 1
            mark = characters == 1 and (first == 0 or position == size)
            if characters >= shortest and not mark:
                row = _row_of_bucket(pruned, code % buckets)
                found[count] = words + row
                count += row >= 0
            characters += 1
        first += 1
        while first < size and word[first] & _LEAD_BITS == _CONTINUATION:
            first += 1
    return first, count


@kernel
def _find_word_ngrams(
    codes: np.ndarray, first: int, words: int, limits: Settings, base: int, pruned: np.ndarray, found: np.ndarray
) -> tuple[int, int]:
    """Do the same for n-grams of two or more words. codes: the hashes of the document's `words` words; base: the number
    of the first bucket's row. found: int64 [BLOCK + word_ngrams].
    """
    count, buckets = 0, np.uint64(limits.buckets)
    while first < words and count < BLOCK:
        code = _signed(codes[first])
        for i in range(first + 1, min(words, first + limits.word_ngrams)):
            code = code * _WORD_FACTOR + _signed(codes[i])
            row = _row_of_bucket(pruned, code % buckets)
            found[count] = base + row
            count += row >= 0
        first += 1
    return first, count


@kernel
def _signed(code: np.uint64) -> np.uint64:
    """Return the 64 bits of a 32-bit hash as a signed number."""
    return code | _SIGN_BITS if code & _SIGN_BIT else code


@kernel
def _mark_word(data: np.ndarray, start: int, stop: int, word: np.ndarray) -> int:
    """Write a word's bytes, extended, between the marks `<` and `>`; return their number."""
    size = stop - start + 2
    word[0], word[size - 1] = _BEGIN_WORD, _END_WORD
    for i in range(stop - start):
        word[i + 1] = np.uint32(extended(data[start + i]))
    return size


@kernel
def _next_word(text: np.ndarray, position: int, stop: int) -> tuple[int, int, np.uint64]:
    """Return where the next word of `text[position:stop]` starts and stops, and its hash. It is empty at the end."""
    while position < stop and _is_space(text[position]):
        position += 1
    start, code = position, fnv.BASIS
    while position < stop and not _is_space(text[position]):
        code = fnv_step(code, extended(text[position]))
        position += 1
    return start, position, code


@kernel
def _add_word(
    vector: np.ndarray, text: np.ndarray, start: int, stop: int, limits: Settings, base: int, pruned: np.ndarray,
    rows: np.ndarray, word: np.ndarray, found: np.ndarray,
) -> int:  # fmt: skip
    """Add the vectors of the n-grams of characters of the word `text[start:stop]`; return their number. base: the
    number of the first bucket's row.
    """
    first, total, size = 0, 0, _mark_word(text, start, stop, word)
    while first < size:
        first, count = _find_character_ngrams(word, first, size, limits, base, pruned, found)
        _add_rows(vector, rows, found, count)
        total += count
    return total


@kernel
def _add_piece(
    vector: np.ndarray, text: np.ndarray, start: int, stop: int, model: Embedding, scratch: Scratch, words: int
) -> tuple[int, int, bool]:
    """Add the vectors of all words of `text[start:stop]`; append their hashes to the `words` hashes of earlier pieces.
    Return the number of vectors, the number of hashes, and whether the line has ended.
    """
    limits, (names, starts, stops, table, base), pruned, rows = model  # once: per word, this would take longer
    word, codes, found = scratch
    total, ended = 0, False
    while not ended:
        start, after, code = _next_word(text, start, stop)
        if start == after:
            break
        entry = table[slot_of(names, starts, stops, table, text, start, after, code)]
        ended = after - start == len(END) and _starts_with(text, start, after, END)
        if entry < base and (entry >= 0 or not _starts_with(text, start, after, PREFIX)):
            if limits.word_ngrams > 1:
                codes[words] = code
                words += 1
            if entry >= 0:
                found[0] = entry
                _add_rows(vector, rows, found, 1)
                total += 1
            if limits.longest > 0 and not ended:
                total += _add_word(vector, text, start, after, limits, base, pruned, rows, word, found)
        start = after
    return total, words, ended


@kernel
def embed(
    data: np.ndarray, starts: np.ndarray, stops: np.ndarray, vector: np.ndarray, model: Embedding, scratch: Scratch
) -> int:
    """Write to `vector` the mean of the vectors of a document, which consists of the pieces `data[start:stop]`; words
    do not continue from one piece to the next. Return the number of vectors; 0 leaves `vector` zero.
    """
    vector[:] = np.float32(0)
    total, words, ended = 0, 0, False
    for piece in range(len(starts)):
        if not ended:
            count, words, ended = _add_piece(vector, data, starts[piece], stops[piece], model, scratch, words)
            total += count
    if not ended:
        count, words, ended = _add_piece(vector, END, 0, len(END), model, scratch, words)
        total += count
    first, base = 0, model.vocabulary.words
    while first < words:
        first, count = _find_word_ngrams(scratch.codes, first, words, model.settings, base, model.pruned, scratch.found)
        _add_rows(vector, model.rows, scratch.found, count)
        total += count
    if total:
        scale = np.float32(1.0 / total)
        for i in range(len(vector)):
            vector[i] *= scale
    return total
