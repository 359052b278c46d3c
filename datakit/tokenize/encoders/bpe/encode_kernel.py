"""Encodes a batch of texts in one compiled loop: finds the next added token, splits the text before it into words, and
looks each word up in the cache or merges its bytes. Addresses and numbers are uint64 (memory_access.py).
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from datakit.text import hash_mixing
from datakit.text.numba_cache import Decorator, cached_njit
from datakit.tokenize.encoders.bpe import (
    added_matches,
    character_tables,
    memory_access,
    merge_table,
    merges,
    whole_words,
    word_cache,
    word_ends,
)
from datakit.tokenize.encoders.bpe.added_matches import AddedAddresses, next_match
from datakit.tokenize.encoders.bpe.memory_access import byte, fetch, put8, put32, put64, text64, word32, word64
from datakit.tokenize.encoders.bpe.merge_table import MergeAddresses
from datakit.tokenize.encoders.bpe.merges import WorkAddresses, merge_word
from datakit.tokenize.encoders.bpe.whole_words import NO_TOKEN, WordAddresses, whole_word
from datakit.tokenize.encoders.bpe.word_cache import (
    LONGEST,
    LONGEST_SHORT,
    MOST_SHORT_TOKENS,
    NOT_FOUND,
    CacheAddresses,
    copy_long,
    copy_short,
    long_key,
    long_set,
    remember_long,
    remember_short,
    short_key,
    short_set,
)
from datakit.tokenize.encoders.bpe.word_ends import CL100K, GPT2, UNDECIDED, cl100k_end, decode, gpt2_end

DONE, FULL, LEFT = 0, 1, 2  # all documents are encoded; the output is full; a document is left to another encoder
DOCUMENT, AT, STRETCH, IDS = (np.uint64(number) for number in range(4))  # the numbers in a state
SPARE = 9  # ids that `out` has room for besides those of a word, because entries of the cache are copied as a whole
_MOST, _AHEAD = np.uint64(merges.MOST_BYTES), np.uint64(merges.AHEAD)
_ZERO, _ONE, _EIGHT = np.uint64(0), np.uint64(1), np.uint64(8)
_ASCII_END, _HIGH = np.uint64(128), np.uint64(0x8080808080808080)
_CODE_POINTS, _UNSTABLE = np.uint64(character_tables.CODE_POINTS), np.uint64(character_tables.UNSTABLE)

kernel: Decorator = cached_njit(
    hash_mixing, added_matches, character_tables, memory_access, merge_table, merges, whole_words, word_cache, word_ends
)
inner = njit(nogil=True)
hot = njit(nogil=True, forceinline=True)


class ModelAddresses(NamedTuple):
    """The addresses of the tables of an encoder. family, digits: see `word_ends`. classes: see `character_tables`.
    whole: 1 if the table `words` has words, else 0.
    """

    family: np.uint64
    digits: np.uint64
    classes: np.uint64
    added: AddedAddresses
    merges: MergeAddresses
    whole: np.uint64
    words: WordAddresses
    cache: CacheAddresses
    space: WorkAddresses


class BatchAddresses(NamedTuple):
    """The addresses of N texts and of what is written about them. text, readable: their bytes, and how many of them may
    be read. offsets: int64 [N + 1]. documents: N. skipped: uint8 [N], 1 for a text that is not to be encoded. lengths:
    int64 [N], to which the numbers of ids are added. out: uint32 [room + SPARE]. state: uint64 [4], the document, the
    position in its text, the end of the stretch without added tokens that contains the position, and the number of ids
    in `out`.
    """

    text: np.uint64
    readable: np.uint64
    offsets: np.uint64
    documents: np.uint64
    skipped: np.uint64
    lengths: np.uint64
    out: np.uint64
    room: np.uint64
    state: np.uint64


@inner
def _merged(text: np.uint64, at: np.uint64, size: np.uint64, model: ModelAddresses) -> np.uint64:
    """Encode a word into the workspace, and return the number of its tokens."""
    if model.whole != _ZERO:
        token = whole_word(text, at, size, model.words)
        if token != NO_TOKEN:
            put32(model.space.tokens, _ZERO, token)
            return _ONE
    return merge_word(text, at, size, model.merges, model.space)


@hot
def look_ahead(
    text: np.uint64, at: np.uint64, stretch: np.uint64, readable: np.uint64, model: ModelAddresses
) -> np.uint64:
    """Find the next words of a stretch, at most AHEAD, and let the processor load the places in the cache where they
    may be, which takes longer than to find a word. Write the end of each word and its place to `model.space.ahead`, and
    return the number of words. Stop before a word that is left to another encoder.
    """
    found, ahead = _ZERO, model.space.ahead
    while at < stretch and found < _AHEAD:
        if model.family == GPT2:
            end = gpt2_end(text, at, stretch, model.classes, readable)
        elif model.family == CL100K:
            end = cl100k_end(text, at, stretch, model.classes, readable, model.digits)
        else:
            end = stretch
        size = end - at
        if end == UNDECIDED or size > _MOST:
            break
        place = _ZERO
        if size <= LONGEST_SHORT:
            place = short_set(short_key(text, at, size, readable), size)
            fetch(model.cache.short, place)
        elif size <= LONGEST:
            first, second, third = long_key(text, at, size, readable)
            place = long_set(first, second, third, size)
            fetch(model.cache.long, place)
            fetch(model.cache.long, place + _EIGHT)
        put64(ahead, found + found, end)
        put64(ahead, found + found + _ONE, place)
        at = end
        found += _ONE
    return found


@hot
def _encode_word(
    text: np.uint64, at: np.uint64, size: np.uint64, place: np.uint64, readable: np.uint64, model: ModelAddresses,
    out: np.uint64, held: np.uint64,
) -> np.uint64:  # fmt: skip
    """Write the ids of a word from the index `held` of `out` on, and return the index after them. place: the set in
    which the word is, if it is in the cache of short words, or of long words if it has more bytes.
    """
    if size <= LONGEST_SHORT:
        key = short_key(text, at, size, readable)
        after = copy_short(model.cache.short, place, key, size, out, held)
        if after != NOT_FOUND:
            return after
        place = long_set(key, _ZERO, _ZERO, size)
    if size <= LONGEST:
        first, second, third = long_key(text, at, size, readable)
        after = copy_long(model.cache.long, place, first, second, third, size, out, held)
        if after != NOT_FOUND:
            return after
    return _encode_new_word(text, at, size, readable, model, out, held)


@inner
def _encode_new_word(
    text: np.uint64, at: np.uint64, size: np.uint64, readable: np.uint64, model: ModelAddresses, out: np.uint64,
    held: np.uint64,
) -> np.uint64:  # fmt: skip
    """Do what `_encode_word` does for a word that is not in the cache, and put it there if it is short enough."""
    count = _merged(text, at, size, model)
    if size <= LONGEST:
        first, second, third = long_key(text, at, size, readable)
        if size <= LONGEST_SHORT and count <= MOST_SHORT_TOKENS:
            remember_short(model.cache.short, short_set(first, size), first, size, model.space.tokens, count)
        else:
            start = long_set(first, second, third, size)
            remember_long(model.cache.long, start, first, second, third, size, model.space.tokens, count)
    for i in range(count):
        put32(out, held + i, word32(model.space.tokens, i))
    return held + count


@kernel
def encode(batch: BatchAddresses, model: ModelAddresses) -> int:
    """Encode documents from where the state says, until all are encoded (DONE), or `out` cannot hold another word
    (FULL), or a document must be left to another encoder (LEFT). Its length then counts only the ids before the place
    at which it was left.
    """
    text, readable, out, room = batch.text, batch.readable, batch.out, batch.room
    document, at = word64(batch.state, DOCUMENT), word64(batch.state, AT)
    stretch, held = word64(batch.state, STRETCH), word64(batch.state, IDS)
    result = DONE
    while document < batch.documents:
        stop, begun = word64(batch.offsets, document + _ONE), held
        if byte(batch.skipped, document) != _ZERO:
            at = stop
        while at < stop:
            if at >= stretch:
                stretch, after, number = next_match(text, at, stop, readable, model.added)
                if stretch == at:
                    if held >= room:
                        result = FULL
                        break
                    put32(out, held, number)
                    held += _ONE
                    at = stretch = after
                    continue
            found = look_ahead(text, at, stretch, readable, model)
            if found == _ZERO:
                result = LEFT
            for i in range(found):
                end, place = word64(model.space.ahead, i + i), word64(model.space.ahead, i + i + _ONE)
                if held + (end - at) > room:
                    result = FULL
                    break
                held = _encode_word(text, at, end - at, place, readable, model, out, held)
                at = end
            if result != DONE:
                break
        put64(batch.lengths, document, word64(batch.lengths, document) + held - begun)
        if result != DONE:
            break
        document += _ONE
        at = stretch = stop
    put64(batch.state, DOCUMENT, document)
    put64(batch.state, AT, at)
    put64(batch.state, STRETCH, stretch)
    put64(batch.state, IDS, held)
    return result


@kernel
def find_unstable(batch: BatchAddresses, combining: np.uint64) -> None:
    """Skip the texts of a batch that NFC may change. combining: the address of the table of combining classes
    (character_tables.py).
    """
    for i in range(batch.documents):
        start, stop = word64(batch.offsets, i), word64(batch.offsets, i + _ONE)
        if not _is_stable(batch.text, start, stop, combining):
            put8(batch.skipped, i, _ONE)


@inner
def _is_stable(text: np.uint64, at: np.uint64, stop: np.uint64, combining: np.uint64) -> bool:
    last = _ZERO
    while at < stop:
        while at + _EIGHT <= stop and text64(text, at) & _HIGH == _ZERO:
            at, last = at + _EIGHT, _ZERO
        if at >= stop:
            break
        if byte(text, at) < _ASCII_END:
            at, last = at + _ONE, _ZERO
            continue
        character, at = decode(text, at, stop)
        if character >= _CODE_POINTS:
            return False
        this = byte(combining, character)
        if this == _UNSTABLE or (this != _ZERO and this < last):
            return False
        last = this
    return True
