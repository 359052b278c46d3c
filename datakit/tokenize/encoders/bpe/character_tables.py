"""Provides two tables of Unicode characters: their classes in the regular expressions of pre-tokenizers, and what the
normalization form NFC may do with them.

benchmarks/split_tables.py generates the tables, the classes from `tokenizers` (the reference). On disk, they are stored
as ranges and take 8 kB. In memory, each is a flat array of 1.1 MB, indexed by character; the lookups for a text touch
only the memory pages of its scripts.
"""

from __future__ import annotations

import functools
import zlib
from pathlib import Path

import numpy as np

CODE_POINTS = 0x110000
OTHER, LETTER, NUMBER, WHITE = 0, 1, 2, 3
UNSTABLE = 255  # NFC may replace the character, or compose it with one before it
FILE = Path(__file__).with_name("character_tables.bin")


@functools.cache
def character_classes() -> np.ndarray:
    """Return uint8 [CODE_POINTS]: LETTER (`\\p{L}`), NUMBER (`\\p{N}`), WHITE (`\\s`) or OTHER."""
    return _tables()[0]


@functools.cache
def combining_classes() -> np.ndarray:
    """Return uint8 [CODE_POINTS]: the canonical combining class of each character, or UNSTABLE. A text without unstable
    characters is in NFC if no character with a combining class other than 0 follows one with a higher class.
    """
    return _tables()[1]


@functools.cache
def _tables() -> list[np.ndarray]:
    # The number of runs in each of two lists, then the lists: the first character of each run, and the run's value.
    numbers = np.frombuffer(zlib.decompress(FILE.read_bytes()), "<u4")
    ends = 2 + 2 * np.cumsum(numbers[:2].astype(np.int64))
    return [_flat(part.reshape(-1, 2)) for part in np.split(numbers, [2, *ends])[1:3]]


def _flat(runs: np.ndarray) -> np.ndarray:
    sizes = np.diff(np.append(runs[:, 0].astype(np.int64), CODE_POINTS))
    table = np.repeat(runs[:, 1].astype(np.uint8), sizes)
    table.flags.writeable = False
    return table
