"""Formats tables, sizes and durations for people; prints data on stdout and everything else on stderr, as plain text.
Tables look the same in a terminal (of 80 columns or more), a file and a pull request. Apart from `datakit cache show`,
only the progress display on stderr uses color.
"""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from datakit import messages
from datakit.messages import Level
from datakit.printable import escaped_json, printable

Cell = str | int | None
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
GAP = "  "
WIDTH = 80  # maximum width in characters; a table is wider if its columns cannot be narrowed enough
NARROWEST = 12  # minimum width of a narrowed column of words, or the length of its longest cell if that is less
INDENT = "    "  # indentation of the text below a row
COUNTS = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
IN_FULL = 10_000  # counts below this number are not abbreviated
ROUNDED = 0.9995  # smallest fraction of a unit that becomes 1 when rounded to three digits
ENDED = "datakit_ended"  # the attribute of an interrupt that says in what state it left the command
PAUSE = 0.5  # minimum number of seconds between two lines of progress
PICTURES = {code: chr(0x2400 + code) for code in range(32)} | dict.fromkeys(range(127, 160), "␡") | {10: "␊\n"}
BIDIRECTIONAL = dict.fromkeys([0x61C, *range(0x200E, 0x2010), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "⇄")


def say(text: str = "") -> None:
    """Print data (one or more lines of text) on stdout. Unsafe characters are escaped (see `datakit.printable`)."""
    print(printable(text))


def note(text: str, level: Level | None = None, *, event: str = "note", **fields: Any) -> None:
    """Print a message for the user on stderr, after the data printed so far; stdout holds only data. See
    `datakit.messages.show` for the arguments.
    """
    with contextlib.suppress(BrokenPipeError):  # `main` reports it
        sys.stdout.flush()
    messages.show(text, level, event=event, **fields)


def progress_note(verb: str) -> Callable[[int, int, str], None]:
    """Return a function that prints progress on stderr, such as "<verb> 3 of 7 files", at most once every half second
    and only if stderr is a terminal.
    """
    last = time.monotonic()

    def show(done: int, total: int, what: str) -> None:
        nonlocal last
        if sys.stderr.isatty() and time.monotonic() - last > PAUSE:
            last = time.monotonic()
            note(f"{verb} {done:,} of {total:,} {what}"[:79], event="progress", done=done, total=total)

    return show


def say_json(value: Any) -> None:
    """Print a value as one JSON object on stdout, with sorted keys."""
    import msgspec

    plain = msgspec.to_builtins(value)
    print(escaped_json(json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False)))


def table(headers: Sequence[str], rows: Sequence[Sequence[Cell]], below: Sequence[str] = ()) -> str:
    """Return a table with aligned columns under headers. Numbers are right-aligned and have thousands separators; None
    becomes a dash.

    If a table would be wider than WIDTH, its widest columns of words are wrapped. below: for each row, the text below
    it, or "".

    >>> print(table(["stage", "rows"], [["normalize", 12345], ["dedup", None]], ["", "see below"]))
    stage        rows
    normalize  12,345
    dedup           -
        see below
    """
    numeric = [any(isinstance(row[column], int) for row in rows) for column in range(len(headers))]
    texts = [list(headers), *([_cell(value) for value in row] for row in rows)]
    widths = _widths(texts, numeric)
    lines = []
    for text, remark in zip_longest(texts, ("", *below), fillvalue=""):
        cells = [_wrapped(cell, width) for cell, width in zip(text, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = zip(parts, widths, numeric, strict=True)
            lines.append(GAP.join(part.rjust(width) if right else part.ljust(width) for part, width, right in padded))
        lines += [wrapped(remark, INDENT)] * bool(remark)
    return "\n".join(line.rstrip() for line in lines)


def wrapped(text: str, indent: str = "", more: str = "") -> str:
    """Wrap a text into lines of at most WIDTH characters. Words stay whole, so names and paths can be copied.

    indent: the text before every line. more: further text before all lines except the first.
    """
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + more, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _widths(texts: Sequence[Sequence[str]], numeric: Sequence[bool]) -> list[int]:
    """Return the widths of the columns. While the table is wider than WIDTH, the widest column that can be wrapped is
    narrowed.
    """
    columns = range(len(numeric))
    widths = [max(len(text[column]) for text in texts) for column in columns]
    filled = [max((len(text[column]) for text in texts[1:]), default=0) for column in columns]
    least = [filled[column] if numeric[column] else min(NARROWEST, filled[column]) for column in columns]
    over = sum(widths) + len(GAP) * (len(widths) - 1) - WIDTH
    for _ in range(over):
        spare = [column for column in columns if widths[column] > max(least[column], 1)]
        if spare:
            widths[max(spare, key=lambda column: widths[column])] -= 1
    return widths


def _wrapped(cell: str, width: int) -> list[str]:
    return [cell] if len(cell) <= width else textwrap.wrap(cell, width) or [""]


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else value


def count_text(number: int | None) -> str | None:
    """Format a count briefly: in full below 10,000, otherwise rounded to three digits, with a unit. None stays None.

    >>> count_text(9_999), count_text(12_345), count_text(999_999)
    ('9,999', '12.3 k', '1 M')
    """
    if number is None or number < IN_FULL:
        return None if number is None else f"{number:,}"
    size, unit = next((size, unit) for size, unit in COUNTS if number >= ROUNDED * size)
    return f"{number / size:.3g} {unit}" if number < 1000 * ROUNDED * size else f"{number / size:,.0f} {unit}"


def visible(text: str) -> str:
    """Return a text with symbols in place of control characters and bidirectional controls, so that a document cannot
    control the terminal. A symbol also marks each line break.
    """
    return text.translate(PICTURES).translate(BIDIRECTIONAL)


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
