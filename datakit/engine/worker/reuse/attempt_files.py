"""Directs a child's standard output and error, and the stacks that faulthandler writes, to the files of its attempt.

The three descriptors keep their numbers for as long as the child lives, and faulthandler is set up once. Between two
attempts they point to /dev/null, so an idle child holds no file of an attempt that has ended. With DATAKIT_DEBUG=1,
output is not redirected.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from pathlib import Path

from datakit.storage import locks
from datakit.storage.stale_files import share_scratch

FAULT_FILE = "faults.txt"
OUTPUT_FILE = "output.txt"
DUMP_SIGNAL = signal.SIGUSR1
_library = ctypes.CDLL(None)


class AttemptFiles:
    """The files of the attempt that a child is running."""

    def __init__(self) -> None:
        self._null = os.open(os.devnull, os.O_RDWR)
        self._faults = os.dup(self._null)
        self._outputs = () if os.environ.get("DATAKIT_DEBUG") else (1, 2)
        self._lock: int | None = None
        self._lead_nowhere()
        faulthandler.enable(self._faults)
        faulthandler.register(DUMP_SIGNAL, self._faults, all_threads=False)

    def open(self, scratch: Path) -> None:
        """Direct output to files in the scratch directory of an attempt that begins, and lock this directory."""
        self._lock = share_scratch(scratch)  # if the driver dies first, the next run must not remove the directory
        _lead(scratch / FAULT_FILE, self._faults)
        if self._outputs:  # libraries' output may quote documents and would garble the progress display
            _lead(scratch / OUTPUT_FILE, *self._outputs)

    def close(self) -> None:
        """Flush the output of an attempt that has ended, and release the lock on its scratch directory."""
        flush()
        self._lead_nowhere()
        if self._lock is not None:
            locks.release(self._lock)
            self._lock = None

    def _lead_nowhere(self) -> None:
        os.dup2(self._null, self._faults, inheritable=False)
        for output in self._outputs:
            os.dup2(self._null, output)


def flush() -> None:
    """Write the output that Python and C libraries have not written yet."""
    sys.stdout.flush()
    sys.stderr.flush()
    _library.fflush(None)


def _lead(path: Path, *descriptors: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for descriptor in descriptors:
        os.dup2(file, descriptor, inheritable=descriptor in (1, 2))
    os.close(file)
