"""Formats two texts in two columns, and marks where they differ."""

from __future__ import annotations

import io

from datakit.cli.console import visible
from datakit.text.word_difference import stretches


def side_by_side(titles: tuple[str, str], texts: tuple[str, str], width: int) -> str:
    """Return two texts side by side, in lines of `width` characters. Stretches that differ are marked with - (left) or
    + (right).
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1, 0, 0), expand=True)
    for fixed in (True, False) * 2:
        grid.add_column(width=1 if fixed else None, ratio=None if fixed else 1, overflow="fold")
    grid.add_row("", Text(titles[0]), "", Text(titles[1]))
    for stretch in stretches(*texts):
        cells = [visible(text).strip(" ") for text in (stretch.left, stretch.right)]
        marks = ["" if stretch.equal or not text else mark for text, mark in zip(cells, "-+", strict=True)]
        grid.add_row(marks[0], Text(cells[0]), marks[1], Text(cells[1]))
    sink = io.StringIO()
    Console(file=sink, width=width, color_system=None, highlight=False, legacy_windows=False).print(grid)
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines())
