"""Locks a run's directory, so that a second process that starts the same run is refused and told which process is
already executing it. Otherwise, the two processes would corrupt each other's checkpoints. The lock is an
operating-system lock (flock) on a small file that names the process holding the lock. The lock is released no matter
how that process ends, even if processes that it forked live on, so the lock is never stale and never has to be removed.
If several processes share a run, only process 0 takes the lock.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from datakit.errors import UsageError
from datakit.storage import locks

LOCK = "running.lock"


@contextmanager
def exclusive(directory: str) -> Iterator[None]:
    """Hold the lock on a run's directory. Raises UsageError if another process holds the lock."""
    path = Path(directory) / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    lock = locks.take(path)
    if lock is None:
        raise _refusal(path)
    try:
        os.truncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        locks.release(lock)


def _refusal(path: Path) -> UsageError:
    if not locks.is_locked(path):
        return UsageError(
            f"{path} cannot be locked, so two processes could write this run at the same time; choose another root: "
            "you need write permission there, and a file system that has locks"
        )
    owner = path.read_text(encoding="utf-8", errors="replace").strip() or "another process"
    return UsageError(f"{path.parent} is in use by {owner}; wait for that process to end, or stop it")
