"""Classifies and lowercases characters for the search for entries of lists. The table holds Unicode 15.1, so that
matches do not depend on the version of Python.

Words are those of `text/unicode_words.py`, except that combining marks are part of them: otherwise, Hindi words that
differ only in their vowel signs would be equal. The table takes 4.4 MB, of which a text touches only the pages of its
scripts.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import numpy as np

from datakit.text.unicode_words import CHARACTER, CODE_POINTS, WORD, character_table
from datakit.text.white_space import WHITE_SPACE

FILE = Path(__file__).with_name("marks.toml")
MARK = np.uint32(1 << 26)  # flag of a combining mark
FINAL_SIGMA, SIGMA = 0x3C2, np.uint32(0x3C3)  # the capital letter has the lowercase form SIGMA everywhere
SPACES = "".join(one for one in WHITE_SPACE if one != "\n")


@functools.cache
def list_table() -> np.ndarray:
    """Return uint32 [CODE_POINTS]: the lowercase form of each character, with the flags WORD, ALONE and MARK. The final
    sigma counts as a sigma.
    """
    words, characters = character_table(), np.arange(CODE_POINTS, dtype=np.uint32)
    table = np.where(words > 0, words, characters)
    for first, last in tomllib.loads(FILE.read_text(encoding="utf-8"))["marks"]:
        table[first : last + 1] |= MARK | WORD
    table[FINAL_SIGMA] = table[SIGMA]
    table.flags.writeable = False
    return table


def lowercase(text: str) -> str:
    """Return a text with each character replaced by its lowercase form.

    >>> lowercase("Straße ΣΑΣ σας")
    'straße σασ σασ'
    """
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    return (list_table()[codes] & CHARACTER).astype("<u4").tobytes().decode("utf-32-le")
