"""Follows the metrics of a training run while it writes them: their newest values, and a curve of its loss.

The curve has fewer than 2 x POINTS points: whenever it reaches this number, every second point is dropped, and further
rows are thinned in the same way. A run that resumes replaces `metrics.jsonl`, so the file is read again from the
beginning if it has become shorter, if the line that was read last is no longer where it was, or if the steps of new
rows do not rise. A file whose size and time are unchanged is not read at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import orjson

from datakit.errors import NotFoundError
from datakit.storage import urls
from datakit.trainer.metrics.json_lines import FILE_NAME, STEP

POINTS = 300
PIECE_BYTES = 1 << 20
LONGEST_LINE = 4 << 20
MOST_METRICS = 60
LOSS = "train/cross_entropy_loss"


@dataclass
class TrainingState:
    """The state of a training run. url: its directory. row: the newest value of each metric. curve: (step, loss)."""

    url: str
    step: int = 0
    version: int = 0
    row: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[int, float]] = field(default_factory=list)
    unreadable: int = 0
    _offset: int = 0
    _last: bytes = b""
    _every: int = 1
    _rows: int = 0
    _newest: int | None = None
    _fallen: bool = False
    _stamp: tuple[int, float] | None = None

    def read(self) -> bool:
        """Read the new rows. Return True if there are any. Raises StorageError, UnreadableError."""
        before, place = self.version, urls.join(self.url, FILE_NAME)
        try:
            stamp = urls.stamp(place)
            if stamp != self._stamp:
                self._read_changed(place, stamp[0])
                self._stamp = stamp
        except NotFoundError:  # not written yet, or being replaced
            pass
        return self.version > before

    def _read_changed(self, place: str, size: int) -> None:
        if size < self._offset or not self._continues(place):
            self._start_again()
        continued, self._fallen = self._offset > 0, False
        while self._offset < size and not (continued and self._fallen) and self._read_piece(place, size):
            pass
        if continued and self._fallen:
            self._start_again()
            self._read_changed(place, size)

    def _continues(self, place: str) -> bool:
        """Return True if the line that was read last still ends at the offset."""
        if not self._last:
            return True
        return urls.read_range(place, self._offset - len(self._last), self._offset) == self._last

    def _start_again(self) -> None:
        self.step, self.row, self.curve, self.unreadable = 0, {}, [], 0
        self._offset, self._last, self._every, self._rows, self._newest = 0, b"", 1, 0, None

    def _read_piece(self, place: str, size: int) -> bool:
        """Read complete lines, or a part of a line that is too long. Return False if there is neither."""
        data = urls.read_range(place, self._offset, min(size, self._offset + PIECE_BYTES))
        if b"\n" not in data and len(data) == PIECE_BYTES:
            data = urls.read_range(place, self._offset, min(size, self._offset + LONGEST_LINE))
        *lines, rest = data.split(b"\n")
        if not lines and len(rest) < LONGEST_LINE:
            return False
        self._offset += len(data) - (len(rest) if lines else 0)
        self._last = lines[-1] + b"\n" if lines else b""
        for line in lines:
            self._add(line)
        return True

    def _add(self, line: bytes) -> None:
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            row = None
        step = row.get(STEP) if isinstance(row, dict) else None
        if not isinstance(row, dict) or not isinstance(step, int):
            self.unreadable += 1
            return
        if self._newest is not None and step <= self._newest:  # this row replaces the rows from its step on
            self._fallen = True
            self.curve = [point for point in self.curve if point[0] < step]
        self.version, self.step, self._newest = self.version + 1, step, step
        for name, value in row.items():
            if name != STEP and _finite(value) and (name in self.row or len(self.row) < MOST_METRICS):
                self.row[name] = value
        if _finite(row.get(LOSS)):
            self._add_point(step, row[LOSS])

    def _add_point(self, step: int, loss: float) -> None:
        self._rows += 1
        if self._rows % self._every == 0:
            self.curve.append((step, loss))
        if len(self.curve) >= 2 * POINTS:
            self.curve, self._every = self.curve[1::2], 2 * self._every


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
