"""Lets only one process train a run: a second one in the same directory would corrupt the first one's checkpoints.

The lock is an operating system lock (flock) on a small file that names its holder. It is released however the process
ends, so it is never stale and never has to be removed. If several hosts train a run, only the first takes the lock.
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
    """Hold the lock of a run's directory. Raises UsageError if another process holds it."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    with (Path(directory) / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise UsageError(
                f"{directory} is being trained by {file.read().strip() or 'another process'}; wait for it or stop it"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
