"""Describes what a task could change in its process, so that a child that a task has changed is not used again.

The description covers what the kernel and Python keep per process and what would reach the next task: open files,
environment, signal handlers, timers, limits, identity, working directory, threads, child processes, and whether the
process runs a user's own code. Memory is judged separately (`child.py`). What libraries cache, such as the words that
an encoder has seen, is not covered: it may change how fast the next task is, but not what it returns. Nor are the
threads of a library's pool, as long as all of them wait for work.

Memory-mapped files are not checked, because /proc/self/maps takes 2.5 ms to read; Python and Arrow keep a
mapped file open, so the list of open files shows these maps as well. A description takes 0.25 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
from typing import Any

from datakit.engine.user_code import user_code_was_used

# The lines of /proc/self/status that a task could change, and the names under which differences are reported.
STATUS_LINES = {
    b"Umask": "umask",
    b"Uid": "user",
    b"Gid": "group",
    b"Groups": "groups",
    b"SigBlk": "blocked signals",
    b"SigIgn": "ignored signals",
    b"SigCgt": "caught signals",
    b"CapPrm": "capabilities",
    b"CapEff": "effective capabilities",
    b"NoNewPrivs": "privileges",
    b"Seccomp": "system call filter",
    b"Cpus_allowed": "processors",
}
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_library = ctypes.CDLL(None)
State = dict[str, Any]


def process_state() -> State:
    """Return the description of this process, by name. Raises OSError if /proc cannot be read."""
    return {
        "open files": _open_files(),
        "environment": (dict(os.environ), _environment()),
        "working directory": (os.readlink("/proc/self/cwd"), os.readlink("/proc/self/root")),
        "threads": (len(sys._current_frames()), _busy_threads()),
        "child processes": _has_had_children(),
        "limits": [_limit(number) for number in LIMITS],
        "timers": [signal.getitimer(timer) for timer in TIMERS],
        "priority": (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)),
        "import path": tuple(sys.path),
        "user code": user_code_was_used(),
        **_status(),
    }


def differences(before: State, after: State) -> list[str]:
    """Return the names of the properties that differ, and "child processes" or "user code" if the process has any."""
    changed = [name for name, value in after.items() if before[name] != value]
    present = [name for name in ("child processes", "user code") if after[name]]
    return list(dict.fromkeys(changed + present))


def _open_files() -> frozenset[tuple[str, str]]:
    found = set[tuple[str, str]]()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.add((descriptor, os.readlink(f"/proc/self/fd/{descriptor}")))
    return frozenset(found)


def _busy_threads() -> frozenset[str]:
    """Return the ids of the threads, besides the calling one, that are not waiting for work. The threads of a library's
    pool, such as Arrow's, wait on a futex. Python's threads do so as well, and are therefore counted separately.
    """
    busy = set[str]()
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != threading.get_native_id():
            with contextlib.suppress(FileNotFoundError), open(f"/proc/self/task/{thread}/wchan", "rb") as file:
                if not file.read().startswith(b"futex"):
                    busy.add(thread)
    return frozenset(busy)


def _environment() -> tuple[bytes, ...]:
    """Return the environment that C libraries see: `os.environ` does not show what they have changed."""
    pointer = ctypes.POINTER(ctypes.c_char_p).in_dll(_library, "environ")
    found: list[bytes] = []
    while pointer and (entry := pointer[len(found)]) is not None:
        found.append(entry)
    return tuple(sorted(found))


def _has_had_children() -> bool:
    """Return True if this process has child processes, or has waited for one since it was forked."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt > 0
    return True


def _limit(number: int) -> tuple[int, ...]:
    """Return a limit; of RLIMIT_DATA, which the engine sets for each attempt, only the hard limit."""
    soft, hard = resource.getrlimit(number)
    return (hard,) if number == resource.RLIMIT_DATA else (soft, hard)


def _status() -> State:
    with open("/proc/self/status", "rb") as file:
        lines = dict(line.split(b":", 1) for line in file.read().splitlines())
    caught = int(lines[b"SigCgt"], 16)
    numbers = [number for number in range(1, signal.NSIG) if caught >> (number - 1) & 1]
    return {
        **{name: lines.get(line) for line, name in STATUS_LINES.items()},
        "signal handlers": [(number, signal.getsignal(number)) for number in numbers],
    }
