"""Lets a process use freed memory again, instead of returning it to the operating system at once; or returns all of it.

By default, glibc maps memory of its own for each large allocation and unmaps it when it is freed. A task that reads its
input chunk by chunk then gets every chunk in memory that the kernel has to provide and clear, page by page. On a
virtual machine, this took a tenth of the CPU time of normalize's routing tasks (measured).

A fork server whose preloads have freed much memory should return it before it forks. Otherwise, its children use this
memory first, and the kernel has to copy each page that they write to, although no one needs its content.
"""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in malloc.h
KEPT_BYTES = 64 << 20  # unused memory above this size is returned
LARGEST_KEPT = 32 << 20  # larger allocations are mapped on their own; glibc accepts no larger limit


def keep_freed_memory() -> None:
    """Keep freed memory for later allocations in this process and its future children, if its C library is glibc."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(MAP_THRESHOLD, LARGEST_KEPT)
        set_option(TRIM_THRESHOLD, KEPT_BYTES)


def return_freed_memory() -> None:
    """Return all unused memory of this process's heap to the operating system, if its C library is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
