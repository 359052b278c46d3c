"""Classifies characters for the kernels: a table with one byte of flags per code point.

The table does not depend on Python's version: letters and scripts come from frozen Unicode 15.1 tables, other sets from
`characters.toml` and from the constants below. It takes 1.1 MB, of which a text touches only the pages of its scripts.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import numpy as np

from datakit.annotate.language.letters import NO_LETTER, scripts
from datakit.text.numba_cache import Decorator, cached_njit
from datakit.text.unicode_words import ALONE as WORD_BY_ITSELF
from datakit.text.unicode_words import CODE_POINTS, character_table

FILE = Path(__file__).with_name("characters.toml")
# flags of a character
SPACE, LETTER, VISIBLE, ALONE, TERMINAL, BREAK, SPECIAL, CLOSER = 1, 2, 4, 8, 16, 32, 64, 128
# SPACE: whitespace. LETTER: general category L. VISIBLE: makes a word more than a symbol. ALONE: of a script without
# spaces, so it is a word by itself. TERMINAL: ends a sentence. BREAK: ends a line. SPECIAL: may begin something that is
# counted, or lie in a phrase. CLOSER: may follow the end of a sentence.
SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B)))
SPACES += "\u2028\u2029\u202f\u205f\u3000"
BREAKS = "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
CLOSERS = "\"')]}»”’›」』）】〉》"
SPECIALS = "#.…{jJkKfFvVpP"
ASCII_END = 128

kernel: Decorator = cached_njit()


@functools.cache
def flags_table() -> np.ndarray:
    """Return the flags of all characters, uint8 [CODE_POINTS]."""
    table = np.zeros(CODE_POINTS, np.uint8)
    ranges = tomllib.loads(FILE.read_text(encoding="utf-8"))
    table[:] = VISIBLE
    for first, last in ranges["symbols"] + ranges["terminal"]:
        table[first : last + 1] = 0
    for first, last in ranges["terminal"]:
        table[first : last + 1] |= TERMINAL
    table[scripts().table != NO_LETTER] |= LETTER
    table[(character_table() & WORD_BY_ITSELF) != 0] |= ALONE
    for characters, flag in ((BREAKS, BREAK), (CLOSERS, CLOSER), (SPECIALS, SPECIAL)):
        table[[ord(character) for character in characters]] |= flag
    spaces = [ord(character) for character in SPACES]
    table[spaces] = SPACE | (table[spaces] & BREAK)
    table.flags.writeable = False
    return table


@functools.cache
def byte_table() -> np.ndarray:
    """Return the flags of ASCII characters by byte, uint8 [256]. Bytes of other characters have all flags."""
    table = np.full(256, 255, np.uint8)
    table[:ASCII_END] = flags_table()[:ASCII_END]
    table.flags.writeable = False
    return table


@kernel
def decode(data: np.ndarray, position: int) -> tuple[int, int]:
    """Return the character that starts at `position` and the position after it. The text must be valid UTF-8."""
    byte = np.int64(data[position])
    if byte < ASCII_END:
        return byte, position + 1  # pyright: ignore[reportReturnType] - a kernel
    length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2
    character = byte & ((1 << (7 - length)) - 1)
    for i in range(1, length):
        character = (character << 6) | (np.int64(data[position + i]) & 63)
    return character, position + length  # pyright: ignore[reportReturnType] - a kernel


@kernel
def is_at(data: np.ndarray, start: int, stop: int, place: int, piece: np.ndarray) -> bool:
    """Return True if the bytes `piece` are at a place inside `data[start:stop]`."""
    if place < start or place + len(piece) > stop:
        return False
    for i in range(len(piece)):  # noqa: SIM110 - faster than a generator, also to compile
        if data[place + i] != piece[i]:
            return False
    return True


@kernel
def before(data: np.ndarray, position: int) -> int:
    """Return the start of the character that ends at `position`. There must be one."""
    position -= 1
    while data[position] & 0xC0 == 0x80:
        position -= 1
    return position
