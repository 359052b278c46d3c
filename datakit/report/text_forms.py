"""Writes the values of a report's tables as text, by kind."""

from __future__ import annotations

from datakit.report.figures import Cell

UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def text_of(value: Cell, kind: str) -> str:
    """Return a value as text; a dash if there is none.

    >>> text_of(12345, "count"), text_of(0.125, "percent"), text_of(None, "count"), text_of(1_500_000, "bytes")
    ('12,345', '12.5 %', '–', '1.5 MB')
    >>> text_of(0.25, "seconds"), text_of(75.5, "seconds"), text_of(3725.0, "seconds"), text_of(0.000123456, "number")
    ('0.25 s', '75.5 s', '1 h 02 min', '0.0001235')
    >>> text_of(12907.6, "number"), text_of(2.0, "number"), text_of(1e20, "number")
    ('12,908', '2', '1e+20')
    """
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    match kind:
        case "percent":
            return f"{100 * value:.1f} %"
        case "bytes":
            return _bytes(value)
        case "seconds":
            return _seconds(value)
        case "number":
            return _number(value)
        case _:
            return f"{value:,}"


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def _bytes(count: float) -> str:
    unit = 0
    while count >= 999.5 and unit < len(UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.0f} {UNITS[unit]}" if unit == 0 or count >= 99.95 else f"{count:.1f} {UNITS[unit]}"


def _seconds(seconds: float) -> str:
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
