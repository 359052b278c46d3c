"""Calls a function at a fixed interval from a thread of its own, so that watchers can see that a run's driver is alive.

The driver's loop could do this only while tasks run, but the driver also lists and hashes files, checks outputs and
waits for stores, which may take minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

STOP_SECONDS = 5.0  # how long `stop` waits for the end of a call of `beat`, which may be waiting for a store


class DriverHeartbeat:
    """Calls `beat` every `seconds` seconds, from `start` to `stop`."""

    def __init__(self, beat: Callable[[], None], seconds: float) -> None:
        self._beat, self._seconds = beat, seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="datakit-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Make no further calls, and wait up to STOP_SECONDS for a call in progress to end."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._beat()
