"""Determines how much memory all tasks may use, reads a process's memory use, and sets a child's `RLIMIT_DATA`.

A child's budget covers its anonymous memory (resident minus shared) beyond what it inherited from the fork server. It
does not cover mapped input files, which belong to the page cache, or preloads, which exist once, in the fork server.
`RLIMIT_DATA` limits what a process *reserves*, not what it uses, and libraries reserve generously: mimalloc (Arrow's
allocator) takes address space 1 GiB at a time by default, and each thread needs a stack. Unless a child needs a hard
limit (`memory_watcher.py`), it therefore gets only a backstop limit: what it had reserved at its start, plus twice its
budget, plus 3 GiB. No healthy task has come near this limit. It catches a single huge request, which fails
immediately instead of exhausting the machine's memory between two measurements by `memory_watcher.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
from typing import NamedTuple

import psutil

from datakit.engine.worker import cgroups

MEMORY_SHARE = 0.85  # share of memory for all attempts; the rest is for the driver, fork servers and page cache
PAGE = os.sysconf("SC_PAGE_SIZE")
BACKSTOP_MARGIN = 3 << 30  # for stacks and for large reservations by allocators
# A hard limit lets a child reserve its remaining budget plus this share of its whole budget. Measured peaks stay below
# 1.1 times the budget (docs/measurements.md).
HARD_LIMIT_MARGIN = 0.05
SMALL_BUDGET = 128 << 20  # if a measurement is 30 ms late, a memory bomb (4 GiB/s) may exceed a smaller budget


def memory_limit() -> int:
    """Return, in bytes, the machine's memory or, if lower, the lowest memory limit of this process's cgroups."""
    return min([psutil.virtual_memory().total, *cgroups.group_limits()])


def usable_memory() -> int:
    """Return the memory that all attempts on this machine may use together, in bytes."""
    return int(memory_limit() * MEMORY_SHARE)


class UsedMemory(NamedTuple):
    """A process's memory in bytes: anonymous resident, private reserved, and resident but shared (mapped files)."""

    used: int = 0
    reserved: int = 0
    shared: int = 0


def used_memory(pid: int | str) -> UsedMemory:
    """Return the memory use of a process, all zero if it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, _, _, data, *_ = map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return UsedMemory()
    return UsedMemory((resident - shared) * PAGE, data * PAGE, shared * PAGE)


def backstop_limit(reserved: int, budget: int) -> int:
    """Return the backstop limit, in bytes, of a child that had reserved `reserved` bytes at its start."""
    return reserved + 2 * budget + BACKSTOP_MARGIN


def first_limit(reserved: int, budget: int) -> int:
    """Return the limit (in bytes) that a child sets for itself: hard if the budget is small, otherwise a backstop."""
    if budget < SMALL_BUDGET:
        return reserved + int((1 + HARD_LIMIT_MARGIN) * budget)
    return backstop_limit(reserved, budget)


def limit_own_memory(budget: int) -> None:
    """Limit the memory of this process. With a small budget, the process gets a hard limit from the start
    (`memory_watcher.py`); otherwise, it gets only the backstop limit.
    """
    set_memory_limit(0, first_limit(used_memory("self").reserved, budget))


def forget_peak() -> None:
    """Make the kernel forget the peak of this process's resident memory (`peak_resident`). Raises OSError."""
    with open("/proc/self/clear_refs", "wb", buffering=0) as file:
        file.write(b"5")


def peak_resident() -> int:
    """Return the peak of this process's resident memory, in bytes, since its fork or since `forget_peak`."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def return_unused_memory() -> None:
    """Give memory that Python, Arrow and the C library have freed, but keep for later, back to the system."""
    import pyarrow as pa

    gc.collect()
    pa.default_memory_pool().release_unused()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def set_memory_limit(pid: int, limit: int) -> None:
    """Set the `RLIMIT_DATA` of a process, in bytes. Pid 0 means this process; a process that is gone is ignored."""
    with contextlib.suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.prlimit(pid, resource.RLIMIT_DATA, (soft, hard))
