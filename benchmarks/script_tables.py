"""Writes datakit/annotate/language/script_tables.bin: the Unicode script of every letter.

    python3.13 benchmarks/script_tables.py   # needs a CPython with the Unicode version below, and fontTools >= 4.55

Letters are the characters of general category L in this version of Unicode. The standard library does not know
scripts. They are taken from fontTools's copy of Unicode's Scripts.txt, which may be of a later version: it must know
every letter, and no script of a letter changed from Unicode 15.0 to 16.0.
"""

from __future__ import annotations

import sys
import unicodedata
import zlib
from array import array
from pathlib import Path

UNICODE = "15.1.0"
TARGET = Path(__file__).resolve().parents[1] / "datakit" / "annotate" / "language" / "script_tables.bin"
CODE_POINTS = 0x110000
UNKNOWN = "Zzzz"


def letter_ranges(scripts: dict[int, str]) -> list[tuple[int, int, str]]:
    """Return (start, stop, script) for each maximal run of letters of one script."""
    ranges: list[tuple[int, int, str]] = []
    for point, script in sorted(scripts.items()):
        if ranges and ranges[-1][1] == point and ranges[-1][2] == script:
            ranges[-1] = (ranges[-1][0], point + 1, script)
        else:
            ranges.append((point, point + 1, script))
    return ranges


def little_endian(numbers: list[int]) -> bytes:
    """Encode numbers as little-endian uint32."""
    values = array("I", numbers)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def main() -> None:
    """Write the file: the number of scripts, their codes, and (start, stop, index of the script) for each range."""
    from fontTools.unicodedata import script  # pyright: ignore[reportMissingImports]

    if unicodedata.unidata_version != UNICODE:
        sys.exit(f"this Python has Unicode {unicodedata.unidata_version}; run it with one that has {UNICODE}")
    letters = [point for point in range(CODE_POINTS) if unicodedata.category(chr(point)).startswith("L")]
    scripts = {point: script(chr(point)) for point in letters}
    if UNKNOWN in scripts.values():
        sys.exit(f"this version of fontTools knows an earlier version of Unicode than {UNICODE}; install a later one")
    codes = sorted(set(scripts.values()))
    ranges = letter_ranges(scripts)
    numbers = [number for start, stop, code in ranges for number in (start, stop, codes.index(code))]
    TARGET.write_bytes(zlib.compress(little_endian([len(codes)]) + "".join(codes).encode() + little_endian(numbers), 9))
    print(f"{TARGET.name}: {len(letters)} letters of {len(codes)} scripts in {len(ranges)} ranges,")
    print(f"Unicode {UNICODE}; {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
