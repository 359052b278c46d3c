"""Decides how long a request is repeated: which answers may pass, how long to wait, and when to give up.

The wait doubles with each failure in a row, and is spread at random so that many tasks do not ask again at once. A
server that says when to come back (`Retry-After`, in seconds or as a date) is asked no earlier. If it says more than
LONGEST_WAIT, the download fails at once with this number, rather than block a worker for hours. A server that sends
almost nothing for a minute counts as one that has failed.

The clock is a parameter, so tests can run through hours of waiting.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from datakit.errors import StorageError

BUSY = (408, 425, 429, 500, 502, 503, 504)  # answers of a server that may give another one later
ATTEMPTS = 6  # failures in a row; the waits between them add up to half a minute
FIRST_WAIT, MOST_WAIT = 1.0, 60.0  # seconds
LONGEST_WAIT = 900.0  # seconds; twice the window in which the Hub counts requests, and some more
SLOW_SECONDS = 60.0
SLOWEST = 1_000  # bytes per second, over SLOW_SECONDS
ENOUGH = 1 << 20  # bytes; an attempt that receives as many has made progress


@dataclass(frozen=True)
class Clock:
    """A source of time. sleep: waits for a number of seconds; now: seconds that never go back; date: the time
    in seconds since 1970.
    """

    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    date: Callable[[], float] = time.time


REAL = Clock()


class PassingError(Exception):
    """A failure that may pass. after: how long the server asks to wait, in seconds; None if it does not say."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


@dataclass
class Patience:
    """Counts the failures in a row of the requests for a part of a file, or for a listing."""

    name: str  # what is requested, for messages
    clock: Clock = REAL
    failures: int = 0

    def succeeded(self) -> None:
        """Forget the failures: there was progress."""
        self.failures = 0

    def wait(self, error: PassingError) -> None:
        """Wait before the next attempt. Raises StorageError if there have been too many failures in a row, or if the
        server asks for too long a wait.
        """
        self.failures += 1
        number = self.failures
        if number >= ATTEMPTS:
            raise StorageError(
                f"the download of {self.name} failed {number} times in a row; the last error was: {error}; run again"
            ) from error
        if error.after is not None and error.after > LONGEST_WAIT:
            raise StorageError(
                f"the download of {self.name} failed: {error}, and the server asks to wait {error.after:,.0f} s; run "
                "again after that time"
            ) from error
        usual = min(MOST_WAIT, FIRST_WAIT * 2.0 ** (number - 1)) * random.uniform(0.75, 1.25)
        self.clock.sleep(usual if error.after is None else error.after + random.uniform(0.1, 1.0))


def asked_wait(value: str | None, clock: Clock = REAL) -> float | None:
    """Return the wait that a `Retry-After` header asks for, in seconds; None without a header that can be understood.

    >>> asked_wait("120"), asked_wait("soon"), asked_wait(None), asked_wait("-5")
    (120.0, None, None, 0.0)
    """
    if not value:
        return None
    try:
        return max(0.0, float(int(value)))
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.fromtimestamp(clock.date(), UTC)).total_seconds())


@dataclass
class Pace:
    """Notices a server that sends almost nothing."""

    clock: Clock
    _since: float = field(init=False)
    _bytes: int = 0

    def __post_init__(self) -> None:
        self._since = self.clock.now()

    def received(self, count: int) -> None:
        """Count received bytes. Raises PassingError if the server was too slow in the last SLOW_SECONDS."""
        self._bytes += count
        passed = self.clock.now() - self._since
        if passed < SLOW_SECONDS:
            return
        if self._bytes < SLOWEST * passed:
            raise PassingError(f"the server sent only {self._bytes:,} bytes in {passed:,.0f} s")
        self._since, self._bytes = self.clock.now(), 0
