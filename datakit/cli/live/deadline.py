"""Ends a command at its time limit, in the same way as SIGTERM does: SystemExit is raised in the main thread.

As on SIGTERM, child processes are stopped, the ledger is flushed, and scratch files are removed. The timer is the
kernel's (SIGALRM), so it needs no thread. Child processes do not inherit it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType

from datakit.exit_codes import ExitCode


@contextmanager
def deadline(limit: timedelta | None) -> Iterator[None]:
    """Raise SystemExit with ExitCode.TIMED_OUT in the main thread if the block takes longer than `limit`."""
    if limit is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, _time_out)
    signal.setitimer(signal.ITIMER_REAL, limit.total_seconds())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _time_out(number: int, frame: FrameType | None) -> None:
    raise SystemExit(ExitCode.TIMED_OUT)
