"""Finds the passages of texts, as tables: divides a column of texts into passages, and hashes them.

Cost and memory: see `kernels.py`. At most BATCH passages are held at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from datakit.errors import TaskError
from datakit.passages import kernels
from datakit.passages.config import CASE, DIGITS, PARAGRAPH, PUNCTUATION, SearchConfig
from datakit.passages.config import WHITE_SPACE as SQUEEZE
from datakit.passages.hashing import BLOCK
from datakit.passages.kernels import BLANK, DROPPED, LOWERED, SQUEEZED, UNPUNCTUATED, WIDE, Passages, Rules
from datakit.text.string_buffers import string_buffers
from datakit.text.unicode_words import ALONE, CHARACTER, WORD, character_table
from datakit.text.white_space import WHITE_SPACE

BATCH = 1 << 16
LONGEST = (1 << 32) - 1  # bytes; positions are stored as uint32 between tasks
ASCII = 128


class Found(NamedTuple):
    """Passages. texts: the index of each one's text. starts, stops: its span. high, low: its hash. int64 or uint64."""

    texts: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    high: np.ndarray
    low: np.ndarray


def rules_of(search: SearchConfig, number: int) -> Rules:
    """Return the settings of a search as kernels need them. number: the search's number, which is hashed as well, so
    that passages of different searches never have equal hashes.
    """
    table = character_table()
    codes = np.full(256, WIDE, np.uint16)
    for octet in range(ASCII):
        codes[octet] = _code(octet, search.ignore, int(table[octet]))
    codes.flags.writeable = False
    flags = LOWERED * (CASE in search.ignore) | UNPUNCTUATED * (PUNCTUATION in search.ignore)
    flags |= SQUEEZED * (SQUEEZE in search.ignore)
    paragraphs = search.unit == PARAGRAPH
    return Rules(codes, table, flags, paragraphs, search.least, search.min_words, np.uint64(number))


def _code(octet: int, ignore: tuple[str, ...], entry: int) -> int:
    """Return the code of an ASCII character, which tells the kernels how to normalize it. entry: its entry in the table
    of characters.
    """
    in_word = entry & int(WORD | ALONE)
    if chr(octet) in WHITE_SPACE:
        return BLANK
    if PUNCTUATION in ignore and not in_word:
        return DROPPED
    if DIGITS in ignore and chr(octet) in "0123456789":
        return ord("0")
    return entry & int(CHARACTER) if CASE in ignore and in_word else octet


def find_passages(texts: pa.Array | pa.ChunkedArray, rules: Rules, batch: int = BATCH) -> Iterator[Found]:
    """Yield the passages of texts in their order, at most `batch` at a time. The arrays are valid until the next ones
    are requested. Raises TaskError if a text is too long.
    """
    data, offsets = string_buffers(texts)
    longest = require_short(offsets)
    room = longest * (2 if rules.flags & LOWERED else 1)  # a lowercase letter may take more bytes
    buffer = np.empty(room // BLOCK * BLOCK + 2 * BLOCK, np.uint8)
    passages = Passages(*(np.empty(batch, kind) for kind in (np.int64, np.int64, np.int64, np.uint64, np.uint64)))
    text = position = 0
    while text < len(offsets) - 1:
        count, text, position = kernels.find_passages(data, offsets, rules, buffer, text, position, passages)
        if count:
            yield Found(*(column[:count] for column in passages))


def require_short(offsets: np.ndarray) -> int:
    """Return the number of bytes of the longest text. Raises TaskError if its positions cannot be stored."""
    longest = int(np.diff(offsets).max(initial=0))
    if longest > LONGEST:
        raise TaskError(f"a text has {longest} bytes; passages can be found only in texts of at most {LONGEST} bytes")
    return longest


def warm() -> None:
    """Load the kernels from numba's disk cache, or compile them."""
    for unit in ("line", "paragraph"):
        list(find_passages(pa.array(["a b\n\nc"], pa.large_string()), rules_of(SearchConfig(unit, min_bytes=1), 0)))
