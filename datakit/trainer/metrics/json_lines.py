"""Writes a run's rows of metrics as JSON lines, reads them, and moves aside the rows that a resumed run repeats and the
lines that cannot be read.

    metrics.jsonl                the numbers of each logged step
    histograms.jsonl             the arrays of every `log.histograms_every`-th step and of the last one
    metrics.set-aside.jsonl      lines of metrics.jsonl that a later start moved here; likewise for histograms

If a step has several rows, only the last one counts. A process that is killed while writing may leave an incomplete
last line, which is ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from datakit.errors import UsageError
from datakit.storage import atomic
from datakit.storage.io_errors import storage_errors

FILE_NAME = "metrics.jsonl"
HISTOGRAMS = "histograms.jsonl"
ASIDE = ".set-aside.jsonl"  # replaces the suffix of the file from which lines are moved
STEP = "global_step"


class JsonLines:
    """The tracker that every run has. It writes NaN and infinity as null.

    Rows after `start`, the step at which the run resumes, are moved to another file, since the run repeats their steps
    or ends before them. Lines that cannot be read are moved there too, and `say` reports them.
    """

    def __init__(self, folder: str, start: int, say: Callable[[str], None]) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._folder, self._files = folder, dict[str, TextIO]()
        with storage_errors(folder):
            for name in (FILE_NAME, HISTOGRAMS):
                if (Path(folder) / name).exists():
                    _move_aside(Path(folder) / name, start, say)
            self._open(FILE_NAME)

    def log(self, step: int, row: Mapping[str, Any]) -> None:
        arrays = {name: value for name, value in row.items() if isinstance(value, list)}
        numbers = {name: _finite(value) for name, value in row.items() if name not in arrays}
        with storage_errors(self._folder):
            for name, values in ((FILE_NAME, numbers), (HISTOGRAMS, arrays)):
                if values:
                    file = self._files.get(name) or self._open(name)
                    file.write(json.dumps({STEP: step, **values}, sort_keys=True) + "\n")
                    file.flush()

    def close(self) -> None:
        with storage_errors(self._folder), ExitStack() as files:  # every file is closed, even if one close fails
            for file in self._files.values():
                files.callback(file.close)

    def _open(self, name: str) -> TextIO:
        self._files[name] = (Path(self._folder) / name).open("a", encoding="utf-8")
        return self._files[name]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _move_aside(path: Path, start: int, say: Callable[[str], None]) -> None:
    """Keep the readable rows up to `start`; move the other complete lines to the file for set-aside lines."""
    fresh, aside = path.with_suffix(".new"), path.with_suffix(ASIDE)
    damaged, later = [], False
    with fresh.open("wb") as kept, aside.open("ab") as dropped:
        for number, line in _whole_lines(path):
            row = _parsed(line)
            if row is None:
                damaged.append(number)
            later = later or (row is not None and row[STEP] > start)
            (dropped if later or row is None else kept).write(line)
    atomic.sync_file(aside)
    atomic.sync_file(fresh)
    fresh.replace(path)
    if not aside.stat().st_size:
        aside.unlink()
    if damaged:
        say(f"warning: {path}: unreadable lines: {len(damaged)}, the first is line {damaged[0]}; moved to {aside.name}")


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line) for each line that ends with a newline; numbers start at 1."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n"):
                yield number, line


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return the row that a line holds, or None if the line is damaged."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get(STEP), int) else None


def has_rows(folder: str) -> bool:
    """Return True if the folder holds rows from an earlier start."""
    path = Path(folder) / FILE_NAME
    return path.exists() and path.stat().st_size > 0


def last_row(folder: str, step: int) -> dict[str, Any]:
    """Return the last row if it is the row of `step`, otherwise an empty dict."""
    rows = read_metrics(folder)
    return rows[-1] if rows and rows[-1][STEP] == step else {}


def read_metrics(folder: str, name: str = FILE_NAME) -> list[dict[str, Any]]:
    """Return a run's rows in step order, with only the last row of each step; leave out lines that cannot be read.

    Raises UsageError if the file does not exist.
    """
    path = Path(folder) / name
    if not path.exists():
        raise UsageError(f"{path} does not exist; is {folder} the directory of a training run?")
    rows = {row[STEP]: row for _, line in _whole_lines(path) if (row := _parsed(line)) is not None}
    return [rows[step] for step in sorted(rows)]
