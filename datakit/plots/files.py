"""Creates and saves figures as PNG, SVG or PDF files, and abbreviates the counts and texts in them. Imports matplotlib
(the extra `report`) only when a target is checked or a figure is drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datakit.errors import UsageError
from datakit.storage import atomic, urls

KINDS = ("png", "svg", "pdf")
DOTS_PER_INCH = 120
INK = "#333333"  # color of text and lines
ROUNDED = 0.9995  # the smallest fraction of a unit that rounds to 1 at three significant digits


def check_target(url: str) -> None:
    """Raise UsageError if matplotlib is missing or `url` does not end in .png, .svg or .pdf. Call this before
    computing what to draw.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UsageError("plots need matplotlib; run pip install '.[report]' in datakit's checkout") from error
    if _kind(url) not in KINDS:
        raise UsageError(f"plot {url}: the name must end in .png, .svg or .pdf")


def new_figure(url: str, inches: tuple[float, float]) -> Any:
    """Create an empty figure of the size `inches` (width, height). Raises the errors of `check_target` for `url`."""
    check_target(url)
    from matplotlib.figure import Figure

    return Figure(figsize=inches, layout="constrained")


def save(figure: Any, url: str) -> None:
    """Write a figure to `url`, in the format given by the file extension, replacing any existing file."""
    with atomic.staging(url) as staged:
        figure.savefig(staged, format=_kind(url), dpi=DOTS_PER_INCH)
        atomic.replace_bytes(staged.read_bytes(), url)


def short(value: float) -> str:
    """Abbreviate a count.
    >>> short(12_300_000), short(40)
    ('12.3 M', '40')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= ROUNDED * size:
            return f"{value / size:.3g} {unit}" if value < 1000 * ROUNDED * size else f"{value / size:,.0f} {unit}"
    return f"{value:.0f}"


def cut(text: str, length: int) -> str:
    """Truncate a text to at most `length` characters, including the ellipsis that marks a cut."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _kind(url: str) -> str:
    return Path(urls.name(url)).suffix.removeprefix(".").lower()
