"""A ledger that cannot be written says so in datakit's words, leaves no part of a line, and lets its lock go."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from datakit.engine.ledger import ledger as ledger_module
from datakit.engine.ledger.ledger import DroppedLine, LedgerWriter, read_ledger
from datakit.errors import NoSpaceError
from tests.support.engine.runs import locked_files
from tests.support.paths import REPOSITORY

# Writes a line, then one for which the disk has no room (a limit on the size of files acts as one), and closes.
FULL = """
import resource, signal, sys
from datakit.engine.ledger.ledger import DroppedLine, LedgerWriter
from datakit.errors import StorageError
from datakit.storage import locks
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ledger = LedgerWriter(sys.argv[1], "driver")
ledger.append(DroppedLine("first", ["a"], 1.0))
ledger.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, -1))
try:
    ledger.append(DroppedLine("second", ["b" * int(sys.argv[2])], 1.0))  # flushes, too, if a second has passed
    ledger.flush()
except StorageError as error:
    print("flush:", error)
ledger.close()
print("locks:", locks.count())
"""


def test_line_without_room(tmp_path: Path) -> None:
    for size in (2000, 20000):
        directory = tmp_path / str(size)
        command = [sys.executable, "-c", FULL, str(directory), str(size)]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        said, locked = done.stdout.splitlines()
        assert said.startswith("flush: ") and str(directory) in said and locked == "locks: 0"
        assert list(read_ledger(str(directory))) == [DroppedLine("first", ["a"], 1.0)]
        (segment,) = (directory / "ledger").iterdir()
        assert segment.read_bytes().endswith(b"\n"), "no part of the second line is left"


def test_lock_goes_even_if_the_last_lines_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ledger_module, "SYNC_SECONDS", 1e9)
    ledger = LedgerWriter(str(tmp_path / "step"), "driver")
    ledger.start()
    assert locked_files(tmp_path)
    with monkeypatch.context() as patched, pytest.raises(NoSpaceError, match="no space left"):
        patched.setattr(os, "write", full)
        ledger.close()
    assert not locked_files(tmp_path)
