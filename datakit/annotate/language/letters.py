"""Defines, by means of a frozen Unicode table, which characters are letters and to which script each belongs.

Letters are the characters of general category L in Unicode 15.1.0, whatever the version of Python. Marks, digits and
ideographs of other categories are none. Scripts have the four-letter codes of ISO 15924 (`Latn`, `Cyrl`, `Hani`).
benchmarks/script_tables.py generates the table. In memory, it is an array of 1.1 MB, of which the lookups for a text
touch only the pages of its scripts. The kernels read 0.4 to 1 GB of text per CPU-second.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

import functools
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datakit.text.numba_cache import Decorator, cached_njit

FILE = Path(__file__).with_name("script_tables.bin")
CODE_POINTS = 0x110000
NO_LETTER = 0  # entry of a character that is no letter
_ASCII_END, _LOWER, _FIRST, _LETTERS = 0x80, 0x20, 0x61, 26

kernel: Decorator = cached_njit()


class Scripts(NamedTuple):
    """The scripts of all letters. names: the scripts' codes, ascending. table: uint8 [CODE_POINTS], 1 + the index of
    the script of each letter, and NO_LETTER for other characters.
    """

    names: tuple[str, ...]
    table: np.ndarray


@functools.cache
def scripts() -> Scripts:
    """Return the scripts, from the file next to this module."""
    data = zlib.decompress(FILE.read_bytes())
    count = int.from_bytes(data[:4], "little")
    names = tuple(data[start : start + 4].decode() for start in range(4, 4 + 4 * count, 4))
    table = np.zeros(CODE_POINTS, np.uint8)
    for start, stop, script in np.frombuffer(data, "<u4", offset=4 + 4 * count).reshape(-1, 3).tolist():
        table[start:stop] = 1 + script
    table.flags.writeable = False
    return Scripts(names, table)


@kernel
def _decode(data: np.ndarray, position: int) -> tuple[np.int64, int]:
    """Return the character that starts at `position`, which is not ASCII, and the position after it."""
    byte = np.int64(data[position])
    length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2
    character = byte & ((1 << (7 - length)) - 1)
    for i in range(1, length):
        character = (character << 6) | (np.int64(data[position + i]) & 63)
    return character, position + length


@kernel
def find_letters(data: np.ndarray, offsets: np.ndarray, table: np.ndarray, found: np.ndarray) -> None:
    """Set `found`, bool [N], to whether each document has a letter. The texts must be valid UTF-8."""
    for document in range(len(offsets) - 1):
        position, stop, letter = offsets[document], offsets[document + 1], False
        while position < stop and not letter:
            character, after = np.int64(data[position]), position + 1
            if character >= _ASCII_END:
                character, after = _decode(data, position)
            letter, position = table[character] != NO_LETTER, after
        found[document] = letter


@kernel
def count_scripts(
    data: np.ndarray,
    offsets: np.ndarray,
    table: np.ndarray,
    latin: int,
    letters: np.ndarray,
    ends: np.ndarray,
    scripts: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Count the letters of each script of N documents, which must be valid UTF-8.

    latin: the entry of ASCII letters in `table`. letters: set to the number of letters, int64 [N]. The scripts of
    document i are written to scripts[ends[i]:ends[i + 1]] as indices, uint8, by descending count, then by index, and
    their numbers of letters to `counts`, int64. ends: int64 [N + 1], zeros.
    """
    tally, end = np.zeros(256, np.int64), np.int64(0)
    for document in range(len(offsets) - 1):
        position, stop, ascii_letters = offsets[document], offsets[document + 1], np.int64(0)
        while position < stop:
            byte = np.int64(data[position])
            if byte < _ASCII_END:
                ascii_letters += _FIRST <= (byte | _LOWER) < _FIRST + _LETTERS
                position += 1
            else:
                character, position = _decode(data, position)
                tally[table[character]] += 1
        tally[latin] += ascii_letters
        tally[NO_LETTER] = 0
        letters[document] = tally.sum()
        end = _sorted_scripts(tally, end, scripts, counts)
        ends[document + 1] = end


@kernel
def _sorted_scripts(tally: np.ndarray, start: int, scripts: np.ndarray, counts: np.ndarray) -> int:
    """Append the scripts with letters, by descending number of letters, and clear the tally. Return the new end."""
    end = start
    for entry in range(1, len(tally)):
        count = tally[entry]
        if not count:
            continue
        place = end
        while place > start and counts[place - 1] < count:
            scripts[place], counts[place] = scripts[place - 1], counts[place - 1]
            place -= 1
        scripts[place], counts[place] = entry - 1, count
        end, tally[entry] = end + 1, 0
    return end
