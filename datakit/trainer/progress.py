"""The line that a person watches: step, loss, tokens/s, MFU, time left. On standard error, a line every few seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

REMEMBERED = 20  # steps whose median duration makes rate and time left


@dataclass
class Progress:
    """The last steps' durations; `say` writes a line."""

    steps: int
    seconds: float
    say: Callable[[str], None]
    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _said: float = float("-inf")

    def step(self, done: int, loss: float, tokens: int, duration: float, mfu: float | None) -> None:
        """Note a step that took `duration` seconds, data and hooks included; say so if it is time."""
        self._durations.append(duration)
        now = time.monotonic()
        if now - self._said < self.seconds and done < self.steps:
            return
        self._said = now
        usual = sorted(self._durations)[len(self._durations) // 2]
        shown = f"{mfu:.1f} %" if mfu is not None else "unknown here"
        self.say(
            f"step {done:,}/{self.steps:,}  loss {loss:.4f}  {compact(tokens / usual)} tokens/s  MFU {shown}  "
            f"{clock((self.steps - done) * usual)} left"
        )


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
