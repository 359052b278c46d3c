"""Locks a run's directory, so that a second process that starts the same run is refused and told which process is
already executing it. Otherwise, the two processes would corrupt each other's checkpoints. The lock is an
operating-system lock (flock) on a small file that names the process holding it. The lock is released no matter how that
process ends, so it is never stale and never has to be removed. If several processes share a run, only process 0 takes
the lock.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from datakit.errors import UsageError

LOCK = "running.lock"


@contextmanager
def exclusive(directory: str) -> Iterator[None]:
    """Hold the lock on a run's directory. Raises UsageError if another process holds the lock."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    with (Path(directory) / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise UsageError(
                f"{directory} is in use by {file.read().strip() or 'another process'}; "
                "wait for that process to end, or stop it"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
