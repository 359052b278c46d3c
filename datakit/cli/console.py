"""Formats tables, sizes and durations for people; prints data on stdout and everything else on stderr, as plain text.
Tables look the same in a terminal, a file and a pull request. Apart from `datakit cache show`, only the progress
display on stderr uses color.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

Cell = str | int | None
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
GAP = "  "
PAUSE = 0.5  # seconds between two lines of progress
PICTURES = {code: chr(0x2400 + code) for code in range(32)} | dict.fromkeys(range(127, 160), "␡") | {10: "␊\n"}


def say(text: str = "") -> None:
    """Print one line of data on stdout."""
    print(text)


def note(text: str) -> None:
    """Print one line on stderr: a message for the user, not data."""
    print(text, file=sys.stderr)


def progress_note(verb: str) -> Callable[[int, int, str], None]:
    """Return a function that prints progress on stderr, at most every half second and only if stderr is a terminal."""
    last = time.monotonic()

    def show(done: int, total: int, what: str) -> None:
        nonlocal last
        if sys.stderr.isatty() and time.monotonic() - last > PAUSE:
            last = time.monotonic()
            note(f"{verb} {done:,} of {total:,} {what}"[:79])

    return show


def say_json(value: Any) -> None:
    """Print one JSON object on stdout, with sorted keys."""
    import msgspec

    plain = msgspec.to_builtins(value)
    print(json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False))


def table(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Format aligned columns under headers. Numbers get thousands separators and right alignment; None is a dash.

    >>> print(table(["stage", "rows"], [["normalize", 12345], ["dedup", None]]))
    stage        rows
    normalize  12,345
    dedup           -
    """
    numeric = [any(isinstance(row[column], int) for row in rows) for column in range(len(headers))]
    texts = [list(headers), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(text[column]) for text in texts) for column in range(len(headers))]
    lines = (
        GAP.join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        for line in texts
    )
    return "\n".join(line.rstrip() for line in lines)


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else value


def visible(text: str) -> str:
    """Replace control characters with symbols, so that a document cannot control the terminal; mark line breaks."""
    return text.translate(PICTURES)


def bytes_text(count: float) -> str:
    """Format a number of bytes for people.

    >>> bytes_text(12_345_678)
    '12.3 MB'
    """
    unit = 0
    while count >= 999.5 and unit < len(UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.0f} {UNITS[unit]}" if unit == 0 or count >= 99.95 else f"{count:.1f} {UNITS[unit]}"


def bytes_cell(count: float | None) -> str | None:
    """Format a number of bytes for a table; None stays None."""
    return None if count is None else bytes_text(count)


def seconds_text(seconds: float) -> str:
    """Format a duration for people.

    >>> seconds_text(3725.0), seconds_text(2.5)
    ('1 h 02 min', '2.5 s')
    """
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
