"""Counts how many attempts ran at the same time, in bins over the time of a run.

There are at most BINS bins, whatever the length of the run: when the time exceeds the last bin, neighbors are merged
and all bins become twice as wide. An attempt counts when it has ended, so the newest bins still grow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BINS = 120
FIRST_WIDTH = 0.25  # seconds


@dataclass
class Activity:
    """The running times of attempts, divided among bins. start: the time at which the first bin begins. width: the
    length of a bin in seconds. seconds: the sum for each bin. total: the sum for all bins.
    """

    start: float
    width: float = FIRST_WIDTH
    seconds: list[float] = field(default_factory=list)
    total: float = 0.0

    def add(self, end: float, seconds: float) -> None:
        """Add an attempt that ended at the time `end` after `seconds` seconds."""
        first, last = max(self.start, end - max(0.0, seconds)), max(self.start, end)
        self._reach(last)
        self.total += last - first
        place = int((first - self.start) / self.width)
        while first < last:
            edge = min(last, self.start + (place + 1) * self.width)
            self.seconds[place] += max(0.0, edge - first)
            first, place = edge, place + 1
            if place >= len(self.seconds):
                return

    def _reach(self, moment: float) -> None:
        while moment - self.start >= BINS * self.width:
            pairs = zip(self.seconds[::2], [*self.seconds[1::2], 0.0], strict=False)
            self.seconds, self.width = [one + other for one, other in pairs], 2 * self.width
        missing = int((moment - self.start) / self.width) + 1 - len(self.seconds)
        self.seconds += [0.0] * missing

    def busy(self) -> list[float]:
        """Return the average number of running attempts in each bin."""
        return [seconds / self.width for seconds in self.seconds]
