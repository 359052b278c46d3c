"""One process at a time trains a run: a second one in the same directory would tear the first one's checkpoints.

The lock is the operating system's (flock) on a small file: it ends with its process, however that ends, so none is ever
stale and nobody has to remove it. The file says who holds it. Of several hosts of one run, the first takes it.
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
def alone_in(directory: str) -> Iterator[None]:
    """Hold the directory's lock. Raises UsageError where another process does."""
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
