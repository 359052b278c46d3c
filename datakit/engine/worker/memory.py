"""Measures the memory that tasks may use and that a process uses; sets `RLIMIT_DATA`, the safeguard behind the watcher.

A child's budget covers its anonymous memory (resident minus shared) in excess of what it inherited from the fork
server. Mapped input files belong to the page cache, and preloads exist only once, in the fork server.

`RLIMIT_DATA` limits what a process *reserves*, not what it uses, and libraries reserve generously: mimalloc (Arrow's
allocator) takes address space 1 GiB at a time, and each thread needs a stack. So the backstop limit is what the child
had reserved at its start plus twice its budget plus 3 GiB. No healthy task came near it (docs/measurements.md). It
catches a single huge request, which fails at once instead of exhausting the machine's memory between two measurements
of the watcher.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

import psutil

from datakit.engine.worker import cgroups

MEMORY_SHARE = 0.85  # for all attempts together; the rest is for the driver, fork servers and page cache
PAGE = os.sysconf("SC_PAGE_SIZE")
BACKSTOP_MARGIN = 3 << 30  # for 1 GiB reservations of mimalloc and for stacks; no healthy task came near it
HARD_LIMIT_MARGIN = 0.05  # share of the budget; measured peaks are below 1.1 budgets (docs/measurements.md)
SMALL_BUDGET = 128 << 20  # a memory bomb (4 GiB/s) exceeds a smaller budget within 30 ms, before a late measurement


def memory_limit() -> int:
    """Return the bytes of memory this process may use: the machine's, or its cgroup's if that is less."""
    return min([psutil.virtual_memory().total, *cgroups.group_limits()])


def usable_memory() -> int:
    """Return the bytes that all attempts on this machine may use together."""
    return int(memory_limit() * MEMORY_SHARE)


def used_memory(pid: int | str) -> tuple[int, int]:
    """Return a process's (anonymous resident bytes, private reserved bytes); (0, 0) if it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, _, _, data, *_ = map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    return (resident - shared) * PAGE, data * PAGE


def backstop_limit(reserved: int, budget: int) -> int:
    """Return the maximum that a child may reserve, given that it had reserved `reserved` bytes at its start."""
    return reserved + 2 * budget + BACKSTOP_MARGIN


def limit_own_memory(budget: int) -> None:
    """Limit this process: a small budget gets a hard limit at once (`memory_watcher.py`), others the backstop limit."""
    reserved = used_memory("self")[1]
    if budget < SMALL_BUDGET:
        set_memory_limit(0, reserved + int((1 + HARD_LIMIT_MARGIN) * budget))
    else:
        set_memory_limit(0, backstop_limit(reserved, budget))


def set_memory_limit(pid: int, limit: int) -> None:
    """Set `RLIMIT_DATA` of a process in bytes; pid 0 is this process. A process that is gone is ignored."""
    with contextlib.suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.prlimit(pid, resource.RLIMIT_DATA, (soft, hard))


def kernel_kills() -> int:
    """Return how many processes on this machine or in this cgroup the kernel has killed for lack of memory."""
    vmstat = Path("/proc/vmstat")
    lines = vmstat.read_text().splitlines() if vmstat.exists() else []
    return cgroups.oom_kills() + sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
