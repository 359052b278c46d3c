"""Checks a run's metrics: every line can be read, steps ascend, none is missing, the rows of a step agree, and the last
row has the values that the manifest states.

A step that saves or evaluates has two rows, of which the second repeats the first. Each row states how often rows are
logged (`log/every`), so a missing one is noticed. Earlier versions did not state it; in their metrics, the largest
interval that fits all rows is assumed.

Cost: parsing the file. Memory: one row, and the numbers of the steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from datakit.storage import urls
from datakit.trainer.metrics.json_lines import FILE_NAME, STEP
from datakit.validate.finding import Result
from datakit.validate.subject import Subject

EVERY = "log/every"
REMEDY = "restore the file from a copy; otherwise train the run again in another root, as its metrics are incomplete"
RARE = ("eval/", "alarm/", "mixture/", "throughput/hook_time")
Row = dict[str, Any]


@dataclass
class _Steps:
    """The rows read so far: the last one, the numbers of the logged steps, and the interval of each."""

    last: Row = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    every: list[int] = field(default_factory=list)


def check(step: Subject, result: Result) -> None:
    """Check the rows in order, then that none is missing, then the values that the manifest states."""
    url = step.url(FILE_NAME)
    if not urls.exists(url):
        return result.find(url, "is missing", REMEDY)
    seen = _Steps()
    for number, row in _rows(url, result):
        result.count("row")
        if row is None:
            result.find(url, f"cannot be read in line {number}", REMEDY)
        elif difference := _contradiction(seen, row):
            result.find(url, f"{difference} (line {number})", REMEDY)
        else:
            _add(seen, row)
    for difference in [*_gaps(seen, step), *_figures(seen, step)]:
        result.find(url, difference, REMEDY)
    return None


def read_rows(url: str) -> dict[int, Row]:
    """Return the rows of a metrics file that can be read, by step."""
    return {row[STEP]: row for _, row in _rows(url, Result("metrics")) if row is not None}


def _rows(url: str, result: Result) -> Iterator[tuple[int, Row | None]]:
    """Yield (line number, row) for each line; the row is None if the line does not hold a valid one. An unfinished
    last line is skipped, and is not a difference.
    """
    with urls.open_read(url) as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                result.skip(f"line {number} of {FILE_NAME} is unfinished")
                return
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            valid = isinstance(row, dict) and isinstance(row.get(STEP), int)
            yield number, row if valid else None


def _contradiction(seen: _Steps, row: Row) -> str:
    """Return how a row contradicts the one before it, or ""."""
    if not seen.last or row[STEP] > seen.last[STEP]:
        return ""
    if row[STEP] < seen.last[STEP]:
        return f"has a row of step {row[STEP]} after one of step {seen.last[STEP]}"
    changed = [name for name in seen.last if name in row and row[name] != seen.last[name]]
    steady = [name for name in changed if not name.startswith(RARE)]
    return f"has two rows of step {row[STEP]} that differ in {steady[0]}" if steady else ""


def _add(seen: _Steps, row: Row) -> None:
    if row[STEP] != seen.last.get(STEP):
        seen.steps.append(row[STEP])
        seen.every.append(int(row.get(EVERY) or 0))
    seen.last = row


def _gaps(seen: _Steps, step: Subject) -> Iterator[str]:
    usual = math.gcd(*seen.steps[:-1]) or 1
    before = _start(step) if step.finished else seen.steps[0] - 1 if seen.steps else 0
    for number, every in zip(seen.steps, seen.every, strict=True):
        every = every or usual
        expected = (before // every + 1) * every
        if expected < number:
            yield f"lacks the row of step {expected}; a row is logged every {every} steps"
        before = number


def _start(step: Subject) -> int:
    """Return the step after which the run began: if the run continued another run (`resume_from`), the step of that
    run's checkpoint; otherwise 0.
    """
    continued = step.manifest.parameters.get("resume_from") is not None
    return int((step.manifest.details.get("origin") or {}).get("step", 0)) if continued else 0


def _figures(seen: _Steps, step: Subject) -> Iterator[str]:
    """Yield how the last row contradicts the manifest of a finished run."""
    if not step.finished:
        return
    steps = step.manifest.parameters["steps"]
    if seen.last.get(STEP) != steps:
        yield f"ends with step {seen.last.get(STEP)}; the manifest says {steps} steps"
        return
    for name, value in step.manifest.details.get("figures", {}).items():
        if seen.last.get(name) != value:
            yield f"says that {name} is {seen.last.get(name)} in the end; the manifest says {value}"
    tokens = seen.last.get("throughput/total_tokens")
    if tokens is not None and tokens != step.manifest.totals.tokens:
        yield f"counts {tokens} tokens; the manifest says {step.manifest.totals.tokens}"
