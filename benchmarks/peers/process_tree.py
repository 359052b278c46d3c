"""Runs a command and measures its whole process tree: CPU time, wall-clock time, and memory of the largest process."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER in linux/prctl.h
SHOWN_LINES = 20  # of the output of a command that failed
ORPHAN_SECONDS = 10.0  # time for processes that outlive the command


@dataclass(frozen=True)
class Usage:
    """The CPU-seconds of all processes, the seconds that passed, and the peak memory of the largest process (bytes)."""

    cpu: float
    wall: float
    largest: int


def measured(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> Usage:
    """Run a command in this process's directory; its output goes to `log`. Processes that lose their parent become
    children of this process, so they count, too. This process must have no other children. Raises CalledProcessError.

    The command may keep the bytecode of the modules that it imports, as installed packages do. Otherwise, each process
    of a command in a checkout would compile datakit's modules again, which takes 0.2 to 0.5 s per process.
    """
    chosen = dict(os.environ if environment is None else environment)
    chosen.pop(NO_BYTECODE, None)
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with log.open("wb") as output:
        started = time.monotonic()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=chosen
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        error = subprocess.CalledProcessError(process.returncode, command)
        error.add_note("\n".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]))
        raise error
    cpu, largest = usage.ru_utime + usage.ru_stime, usage.ru_maxrss
    for orphan in _orphans():
        cpu, largest = cpu + orphan.ru_utime + orphan.ru_stime, max(largest, orphan.ru_maxrss)
    return Usage(cpu, wall, largest << 10)


def _orphans() -> Iterator[resource.struct_rusage]:
    """Wait for the processes that have outlived the command, and yield the resources that each has used."""
    end = time.monotonic() + ORPHAN_SECONDS
    while time.monotonic() < end:
        try:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            yield usage
        else:
            time.sleep(0.05)
    raise TimeoutError("processes of the command are still running")
