"""Prints a progress line every few seconds: step, loss, tokens/s, MFU (if the peak FLOP/s of the devices are known),
time left, and the share of time spent waiting for data if it exceeds 5 %. Rates and the time left are computed from the
median duration of the most recent steps, including the wait for data.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

WINDOW = 20  # the median duration of this many recent steps determines the rates and the time left
NOTABLE_WAIT = 0.05  # the wait for data is shown if it exceeds this share of the total duration of these steps


@dataclass
class Progress:
    """Collects the durations of steps and of their waits for data; passes a line to `say` every `seconds` seconds."""

    steps: int
    seconds: float
    say: Callable[[str], None]
    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _waits: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _said: float = float("-inf")

    def step(self, done: int, tokens: int, duration: float, row: Mapping[str, Any]) -> None:
        """Record a step of `duration` seconds, including loading, saving and evaluation; print a line if one is due."""
        self._durations.append(duration)
        self._waits.append(row["throughput/loading_time"])
        now = time.monotonic()
        if now - self._said < self.seconds and done < self.steps:
            return
        self._said = now
        usual = sorted(self._durations)[len(self._durations) // 2]
        mfu, waiting = row.get("throughput/mfu"), sum(self._waits) / sum(self._durations)
        parts = [
            f"step {done:,}/{self.steps:,}",
            f"loss {row['train/loss']:.4f}",
            f"{compact(tokens / usual)} tokens/s",
        ]
        parts += [f"MFU {mfu * row['throughput/duration'] / usual:.1f} %"] if mfu is not None else []
        line = "  ".join([*parts, f"{clock((self.steps - done) * usual)} left"])
        self.say(line + (f"\n    {waiting:.0%} of the time waiting for data" if waiting > NOTABLE_WAIT else ""))


def clock(seconds: float) -> str:
    """
    >>> clock(3725)
    '1:02:05'
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def compact(number: float) -> str:
    """
    >>> compact(12345)
    '12.3 k'
    """
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.1f} {unit}"
    return f"{number:.0f}"
