"""How much memory there is, how much a process uses, and the last resort where the watcher does not come in time.

What counts against a budget is anonymous memory (resident minus shared) above what the fork server passed on: mapped
input files are the page cache's, and preloads are paid for once.

`RLIMIT_DATA` bounds what is *reserved*, not what is used, and libraries reserve generously: mimalloc (Arrow's
allocator) takes address space 1 GiB at a time, and each thread brings its stack. So the limit stands at what the child
had at its start, twice the budget, and 3 GiB. No healthy task was seen near it (docs/measurements.md); what meets it is
one huge request, which then fails at once instead of filling the machine between two looks of the watcher.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

import psutil

from datakit.engine.worker import cgroups

MEMORY_SHARE = 0.85  # of the machine, for all attempts together
PAGE = os.sysconf("SC_PAGE_SIZE")
RESERVES = 3 << 30
WALL, SMALL_BUDGET = 0.05, 128 << 20  # a wall's height above the budget, as a part of it; see `memory_watcher.py`


def memory_limit() -> int:
    """The bytes of memory that this process may use: the machine's, or its cgroup's where that is less."""
    return min([psutil.virtual_memory().total, *cgroups.memory_limits()])


def usable_memory() -> int:
    """What all attempts of this machine may use together."""
    return int(memory_limit() * MEMORY_SHARE)


def used_memory(pid: int | str) -> tuple[int, int]:
    """(anonymous bytes resident, private bytes reserved) of a process; (0, 0) once it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, _, _, data, *_ = map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    return (resident - shared) * PAGE, data * PAGE


def reserve_limit(reserved: int, budget: int) -> int:
    """What a child that had `reserved` bytes at its start may reserve at most."""
    return reserved + 2 * budget + RESERVES


def hold_reserves(budget: int) -> None:
    """Set the limit for this process: with a small budget a wall right from the start, see `memory_watcher.py`."""
    reserved = used_memory("self")[1]
    limit_reserves(0, reserved + int((1 + WALL) * budget) if budget < SMALL_BUDGET else reserve_limit(reserved, budget))


def limit_reserves(pid: int, limit: int) -> None:
    """Set the limit of a process; 0 is this one. One that is gone needs none."""
    with contextlib.suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.prlimit(pid, resource.RLIMIT_DATA, (soft, hard))


def kernel_kills() -> int:
    """How many processes the kernel has killed for lack of memory, on this machine or in this cgroup, so far."""
    vmstat = Path("/proc/vmstat")
    lines = vmstat.read_text().splitlines() if vmstat.exists() else []
    return cgroups.kills() + sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
