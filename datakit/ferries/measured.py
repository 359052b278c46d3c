"""Runs a command, and writes the CPU time and the peak memory of all its processes to a file.

    python -I measured.py REPORT COMMAND...

This program runs as a process of its own between a ferry and a command, for three reasons. The kernel adds up the CPU
time of a process's ended children, and this process starts nothing but the command. It adopts the processes that the
command leaves behind (PR_SET_CHILD_SUBREAPER), so no descendant is missed. And if the ferry is killed, this process
gets SIGTERM, passes it on to the command, and ends. It imports nothing from datakit.

The peak memory is the largest resident memory of any single process, as the kernel counted it. The sum over processes
could only be sampled, would count shared pages repeatedly, and would depend on which tasks happened to run together.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from types import FrameType

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
ORPHANS_SECONDS = 10.0  # how long to wait for processes that outlive the command
# How long the command may take to end after SIGTERM. The sum with ORPHANS_SECONDS is less than `child.STOP_SECONDS`.
KILL_SECONDS = 40.0
PAUSE = 0.02


def main(report: str, command: list[str]) -> int:
    """Run the command, write the report, and return the command's exit code as shells show it."""
    library = ctypes.CDLL(None)
    library.prctl(PR_SET_CHILD_SUBREAPER, 1)
    library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    before = time.monotonic()
    child = _start(command)
    _, status = os.waitpid(child, 0)
    wall = time.monotonic() - before
    left = _reap(time.monotonic() + ORPHANS_SECONDS)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = os.waitstatus_to_exitcode(status)
    found = {
        "code": code if code >= 0 else 128 - code,
        "wall_seconds": wall,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_rss": usage.ru_maxrss * 1024,
        "left_behind": left,
    }
    with open(report, "w", encoding="utf-8") as file:
        json.dump(found, file)
    return found["code"]


def _start(command: list[str]) -> int:
    """Start the command in a process group of its own, and return its process id. SIGTERM is blocked until it can be
    passed on.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    child = os.posix_spawn(command[0], command, os.environ, setpgroup=0, setsigmask=[])
    signal.signal(signal.SIGTERM, lambda number, frame: _pass_on(child, number, frame))
    signal.signal(signal.SIGALRM, lambda number, frame: _kill(child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return child


def _pass_on(child: int, number: int, frame: FrameType | None) -> None:
    if not signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.setitimer(signal.ITIMER_REAL, KILL_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def _kill(child: int) -> None:
    """Kill a command that has not ended after SIGTERM, with the processes of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def _reap(until: float) -> int:
    """Wait for adopted processes. Return 1 if some are still running at the time `until`, else 0."""
    while time.monotonic() < until:
        try:
            process, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0
        if not process:
            time.sleep(PAUSE)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
