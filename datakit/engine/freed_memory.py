"""Lets a process use freed memory again, instead of returning it to the operating system at once; or returns all of it.

By default, glibc maps memory of its own for each large allocation and unmaps it when it is freed. A task that reads its
input chunk by chunk then gets every chunk in memory that the kernel has to provide and clear, page by page. On a
virtual machine, this took a tenth of the CPU time of normalize's routing tasks (measured).

A training step on the CPU allocates buffers of hundreds of MB and frees them at its end. They are larger than any limit
that glibc accepts, so `keep_all_freed_memory` lets it map no memory at all: everything comes from the heap, which stays
as large as it has ever been.

A fork server whose preloads have freed much memory should return it before it forks. Otherwise, its children use this
memory first, and the kernel has to copy each page that they write to, although no one needs its content.
"""

from __future__ import annotations

import ctypes

# M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX and M_ARENA_MAX in malloc.h
TRIM_THRESHOLD, MAP_THRESHOLD, MAPS, ARENAS = -1, -3, -4, -8
KEPT_BYTES = 64 << 20  # unused memory above this size is returned
NEVER = 2**31 - 1  # the largest number that fits in the option: 2 GB
LARGEST_KEPT = 32 << 20  # larger allocations are mapped on their own; glibc accepts no larger limit


def keep_freed_memory() -> None:
    """Keep freed memory for later allocations in this process and its future children, if its C library is glibc."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(MAP_THRESHOLD, LARGEST_KEPT)
        set_option(TRIM_THRESHOLD, KEPT_BYTES)


def keep_all_freed_memory() -> None:
    """Keep freed memory for later allocations, whatever their size, if this process's C library is glibc. Call it
    before the process starts threads that allocate much: they must share the main thread's heap, because only that one
    grows without a limit.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(ARENAS, 1)
        set_option(MAPS, 0)
        set_option(TRIM_THRESHOLD, NEVER)


def return_freed_memory() -> None:
    """Return all unused memory of this process's heap to the operating system, if its C library is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
