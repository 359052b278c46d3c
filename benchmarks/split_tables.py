"""Writes datakit/tokenize/encoders/bpe/character_tables.bin: how pre-tokenizers classify characters, and which
characters the normalization form NFC leaves alone.

    python3.13 -m benchmarks.split_tables        # needs `tokenizers`, and a CPython with the Unicode version below

The result is part of the package, because to compute it takes seconds. The classes are those of `tokenizers`, whose
regular expressions have Unicode tables of their own: the library splits a text that contains every character once. The
normalization properties come from Python. A character that Python does not know is treated as unstable.
"""

from __future__ import annotations

import sys
import unicodedata
import zlib
from array import array
from pathlib import Path

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

UNICODE = "15.1.0"
TARGET = Path(__file__).resolve().parents[1] / "datakit" / "tokenize" / "encoders" / "bpe" / "character_tables.bin"
CODE_POINTS = 0x110000
SURROGATES = range(0xD800, 0xE000)
OTHER, LETTER, NUMBER, WHITE = range(4)
EXPRESSIONS = {LETTER: r"\p{L}+", NUMBER: r"\p{N}+", WHITE: r"\s+"}
UNSTABLE = 255  # NFC may replace the character, or compose it with one before it; no combining class is that high
HANGUL_VOWELS_AND_FINALS = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))


def classes() -> bytearray:
    """Return the class of every character, as `tokenizers` matches it."""
    characters = [number for number in range(CODE_POINTS) if number not in SURROGATES]
    text, found = "".join(map(chr, characters)), bytearray(CODE_POINTS)
    for kind, expression in EXPRESSIONS.items():
        for piece, (start, stop) in Split(Regex(expression), "isolated").pre_tokenize_str(text):
            if matches(expression, piece[0]):
                for number in characters[start:stop]:
                    assert found[number] == OTHER, hex(number)
                    found[number] = kind
    return found


def matches(expression: str, character: str) -> bool:
    """Return True if `tokenizers` matches a character with an expression."""
    return len(Split(Regex(expression), "removed").pre_tokenize_str(character)) == 0


def combining() -> bytearray:
    """Return the canonical combining class of every character, or UNSTABLE."""
    found = bytearray(map(stability, range(CODE_POINTS)))
    for number in range(CODE_POINTS):
        parts = unicodedata.decomposition(chr(number)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            found[int(parts[1], 16)] = UNSTABLE  # it composes with the character before it
    for number in HANGUL_VOWELS_AND_FINALS:
        found[number] = UNSTABLE
    return found


def stability(number: int) -> int:
    """Return the combining class of a character; UNSTABLE if NFC replaces it, or if it is not assigned."""
    character = chr(number)
    known = number not in SURROGATES and unicodedata.category(character) != "Cn"
    if not known or unicodedata.normalize("NFC", character) != character:
        return UNSTABLE
    return unicodedata.combining(character)


def runs(values: bytearray) -> list[tuple[int, int]]:
    """Return (first character, value) for each maximal run of characters with equal values."""
    return [(at, value) for at, value in enumerate(values) if at == 0 or values[at - 1] != value]


def main() -> None:
    """Write the tables."""
    if unicodedata.unidata_version != UNICODE:
        sys.exit(f"this Python has Unicode {unicodedata.unidata_version}; run a CPython with {UNICODE}, such as 3.13")
    lists = [runs(classes()), runs(combining())]
    numbers = array("I", [len(found) for found in lists])
    for found in lists:
        numbers.extend(value for pair in found for value in pair)
    TARGET.write_bytes(zlib.compress(numbers.tobytes(), 9))
    print(f"{TARGET}: {[len(found) for found in lists]} runs, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
