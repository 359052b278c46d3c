"""Implements `datakit ls`, which lists datasets and their steps, and marks superseded steps."""

from __future__ import annotations

import time
from itertools import groupby
from typing import TYPE_CHECKING

from datakit.cli.console import bytes_cell, count_text, note, say, say_json, table
from datakit.cli.parameters import Flag
from datakit.errors import counted

if TYPE_CHECKING:
    from datakit.pipeline.overview import ListedStep

HEADERS = ("step", "written (UTC)", "  rows", "tokens", "   size", "state")
HALF_A_YEAR = 182 * 86400
WITHOUT_ROWS = ("download",)  # stages that count files, not rows


def ls(directory: str = "./data", /, *, json: Flag = False) -> int:
    """List datasets, their steps and token caches: date, rows, tokens, size, and whether they are current.

    The current steps of a dataset are those of its last complete run; a command uses these steps if it is given the
    dataset instead of a step. A step is superseded if it is not current and no current step was made from it.

    Examples:
      datakit ls
      datakit ls data/demo --json

    Parameters
    ----------
    directory
        A root, or the directory of a dataset or a source.
    json
        Print one JSON object, with the parameters of each step.
    """
    from datakit.api import ls as overview

    found = overview(directory)
    if json:
        say_json(found)
        return 0
    for number, (home, steps) in enumerate(groupby(found.steps, key=lambda step: step.home)):
        kind = "source" if home.endswith(f"/sources/{home.rpartition('/')[2]}") else "recipe"
        say(("\n" if number else "") + f"{kind} {home.rpartition('/')[2]}: {home}")
        say(table(HEADERS, [_row(step) for step in steps]))
    for problem in found.problems:
        note(f"undecided: {problem}")
    superseded = [step for step in found.steps if step.state == "superseded"]
    size = sum(step.totals.bytes for step in superseded if step.totals)
    if superseded:
        count = counted(len(superseded), "superseded step")
        note(
            f"{count}, {bytes_cell(size)} in all; `datakit gc` lists those that nothing needs, and why others are kept"
        )
    caches = [step.directory for step in found.steps if (step.stage, step.state) == ("tokenize", "current")]
    if caches:
        note(f"look at a cache: datakit inspect {caches[0]}")
    return 0


def _row(step: ListedStep) -> list[str | int | None]:
    from datakit.storage import urls

    totals = step.totals
    rows = None if totals is None or step.stage in WITHOUT_ROWS else totals.rows
    tokens, size = (totals.tokens, totals.bytes) if totals else (None, None)
    numbers = (count_text(rows), count_text(tokens), bytes_cell(size))
    cells = [(text or "-").rjust(width) for text, width in zip(numbers, (6, 6, 7), strict=True)]
    return [urls.name(step.directory), _written(step.written), *cells, step.state]


def _written(moment: float | None) -> str | None:
    """Return a time as `ls -l` prints it: the date followed by the time of day or, if the date is half a year or more
    ago, by the year.
    """
    if not moment:
        return None
    recent = abs(time.time() - moment) < HALF_A_YEAR
    return time.strftime("%b %d %H:%M" if recent else "%b %d  %Y", time.gmtime(moment))
