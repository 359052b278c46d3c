"""Defines, by means of frozen Unicode tables, which characters form words, which characters are words by themselves,
and how characters are lowercased. These definitions do not depend on the Python version. A word is a maximal run of
word characters in the lowercased text. In scripts written without spaces (Han, Hiragana, Katakana, Thai, Lao, Khmer,
Myanmar, Tibetan), every word character is a word of its own. Word characters are those that `re` matches with `\\w` in
Unicode 15.1.0. Lowercasing uses Unicode's simple mapping of one character to one character, so that a kernel needs only
a table lookup. By contrast, `str.lower` depends on context (final sigma) and maps U+0130 to two characters.

benchmarks/unicode_tables.py generates the tables. On disk, they are stored as ranges and take 7 kB. In memory, they are
one flat array of 4.4 MB, indexed by character; the lookups for a text touch only the memory pages of its scripts.
"""

from __future__ import annotations

import functools
import zlib
from pathlib import Path

import numpy as np

UNICODE_VERSION = "15.1.0"
CODE_POINTS = 0x110000
CHARACTER = np.uint32(0x1FFFFF)  # the bits of an entry that hold the lowercase character
WORD = np.uint32(1 << 24)  # flag of a character that is part of a word
ALONE = np.uint32(1 << 25)  # flag of a character that is a word of its own
FILE = Path(__file__).with_name("unicode_tables.bin")


@functools.cache
def character_table() -> np.ndarray:
    """Return uint32 [CODE_POINTS]: for a word character, its lowercase form and the flag WORD or ALONE; otherwise 0."""
    # The number of pairs in each of three lists, then the lists: two of ranges, and one of (character, lowercase form).
    numbers = np.frombuffer(zlib.decompress(FILE.read_bytes()), "<u4")
    ends = 3 + 2 * np.cumsum(numbers[:3].astype(np.int64))
    words, spaceless, pairs = (part.reshape(-1, 2) for part in np.split(numbers, [3, *ends])[1:4])
    characters = np.arange(CODE_POINTS, dtype=np.uint32)
    characters[pairs[:, 0]] = pairs[:, 1]
    flags = np.zeros(CODE_POINTS, np.uint32)
    for start, stop in words:
        flags[start:stop] = WORD
    for start, stop in spaceless:
        flags[start:stop] = ALONE
    table = np.where(flags > 0, characters | flags, np.uint32(0))
    table.flags.writeable = False
    return table
