"""Writes datakit/text/unicode_tables.bin: which characters form words, and their simple lower case.

    python3.13 benchmarks/unicode_tables.py        # needs only a CPython with the Unicode version below

The result is part of the package, because Python's own answer changes with its version (3.11 has Unicode 14.0, 3.12 has
15.0, 3.13 has 15.1), and a set of shingles must not depend on where it is computed. Word characters are those that `re`
matches with `\\w`. Lower case maps one character to one (`str.lower` is contextual and may return two). The standard
library does not know scripts, so their ranges are copied from Unicode's Scripts.txt and checked against the characters'
names.
"""

from __future__ import annotations

import re
import sys
import unicodedata
import zlib
from array import array
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

UNICODE = "15.1.0"
TARGET = Path(__file__).resolve().parents[1] / "datakit" / "text" / "unicode_tables.bin"
CODE_POINTS = 0x110000

# Scripts written without spaces, whose characters are words of their own: ranges (first, last) by script. Characters
# of script Common or Inherited that occur with only one of these (the prolonged sound mark) are listed with it.
SPACELESS = {
    "Thai": [(0x0E01, 0x0E3A), (0x0E40, 0x0E5B)],
    "Lao": [(0x0E81, 0x0EDF)],
    "Tibetan": [(0x0F00, 0x0FD4), (0x0FD9, 0x0FDA)],
    "Myanmar": [(0x1000, 0x109F), (0xA9E0, 0xA9FE), (0xAA60, 0xAA7F)],
    "Khmer": [(0x1780, 0x17F9), (0x19E0, 0x19FF)],
    "Han": [
        (0x3005, 0x3007),
        (0x3021, 0x3029),
        (0x3038, 0x303C),
        (0x3192, 0x319F),
        (0x3400, 0x4DBF),
        (0x4E00, 0x9FFF),
        (0xF900, 0xFAD9),
        (0x16FE2, 0x16FE3),
        (0x1D372, 0x1D376),
        (0x20000, 0x2A6DF),
        (0x2A700, 0x2EBE0),
        (0x2EBF0, 0x2EE5D),
        (0x2F800, 0x2FA1D),
        (0x30000, 0x323AF),
    ],
    "Hiragana": [(0x3031, 0x3035), (0x3041, 0x309F), (0x1B001, 0x1B11F), (0x1B132, 0x1B132), (0x1B150, 0x1B152)],
    "Katakana": [
        (0x30A1, 0x30FA),
        (0x30FC, 0x30FF),
        (0x31F0, 0x31FF),
        (0xFF66, 0xFF9F),
        (0x1AFF0, 0x1AFFE),
        (0x1B000, 0x1B000),
        (0x1B120, 0x1B122),
        (0x1B155, 0x1B155),
        (0x1B164, 0x1B167),
    ],
}
NAMES = {
    "Thai": ("THAI ",),
    "Lao": ("LAO ",),
    "Tibetan": ("TIBETAN ",),
    "Myanmar": ("MYANMAR ",),
    "Khmer": ("KHMER ",),
    "Han": (
        "CJK UNIFIED IDEOGRAPH",
        "CJK COMPATIBILITY IDEOGRAPH",
        "IDEOGRAPHIC ",
        "HANGZHOU NUMERAL",
        "VERTICAL IDEOGRAPHIC",
        "MASU ",
        "OLD CHINESE ",
    ),
    "Hiragana": ("HIRAGANA ", "HENTAIGANA ", "VERTICAL KANA REPEAT"),
    "Katakana": ("KATAKANA", "HALFWIDTH KATAKANA"),
}


Ranges = list[tuple[int, int]]  # [start, stop) each


def word_characters() -> set[int]:
    """Return the word characters of `re`."""
    pattern = re.compile(r"\w")
    return {point for point in range(CODE_POINTS) if pattern.match(chr(point))}


def spaceless_characters(words: set[int]) -> set[int]:
    """Return the word characters of scripts without spaces. Raises ValueError if a range and a name disagree."""
    spaceless = set()
    for script, ranges in SPACELESS.items():
        for first, last in ranges:
            inside = words.intersection(range(first, last + 1))
            for point in inside:
                if not unicodedata.name(chr(point)).startswith(NAMES[script]):
                    raise ValueError(f"U+{point:04X} {unicodedata.name(chr(point))} is not {script}")
            spaceless |= inside
    return spaceless


def forgotten(words: set[int], spaceless: set[int]) -> list[str]:
    """Return word characters outside the ranges whose names belong to a script without spaces."""
    prefixes = tuple(prefix for names in NAMES.values() for prefix in names)
    named = ((point, unicodedata.name(chr(point), "")) for point in sorted(words - spaceless))
    return [f"U+{point:04X} {name}" for point, name in named if name.startswith(prefixes)]


def lower_pairs() -> Ranges:
    """Return (character, its simple lower case) for all characters that have one, ascending."""
    pairs = []
    for point in range(CODE_POINTS):
        lower = chr(point).lower()
        if lower != chr(point):
            pairs.append((point, ord(lower[0])))  # only U+0130 has two; its simple mapping is the first, "i"
    return pairs


def runs(points: Iterable[int]) -> Ranges:
    """Return the ranges that cover exactly these code points."""
    ordered = sorted(points)
    starts = [ordered[0]] + [after for before, after in pairwise(ordered) if after != before + 1]
    stops = [before + 1 for before, after in pairwise(ordered) if after != before + 1] + [ordered[-1] + 1]
    return list(zip(starts, stops, strict=True))


def little_endian(numbers: Iterable[int]) -> bytes:
    """Encode numbers as little-endian uint32."""
    values = array("I", numbers)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def main() -> None:
    """Write the file and print a summary."""
    if unicodedata.unidata_version != UNICODE:
        sys.exit(f"this Python has Unicode {unicodedata.unidata_version}; run it with one that has {UNICODE}")
    words = word_characters()
    spaceless = spaceless_characters(words)
    if missing := forgotten(words, spaceless):
        sys.exit("characters missing from the ranges:\n" + "\n".join(missing))
    tables = [runs(words), runs(spaceless), lower_pairs()]
    data = little_endian(map(len, tables)) + little_endian(
        number for table in tables for pair in table for number in pair
    )
    TARGET.write_bytes(zlib.compress(data, 9))
    print(f"{TARGET.name}: Unicode {UNICODE}, {len(words)} word characters in {len(tables[0])} ranges,")
    print(
        f"{len(spaceless)} of scripts without spaces, {len(tables[2])} lower-case pairs; {TARGET.stat().st_size} bytes"
    )


if __name__ == "__main__":
    main()
