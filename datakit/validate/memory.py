"""Reduces the memory of a validating process: its threads share one heap, and Arrow returns unused memory.

By default, the C library gives each thread a heap of its own, and memory that one thread has freed cannot be used by
another. With one heap, the peak on 121 MB of text is 250 MiB instead of 280 to 300 MiB, and the CPU time is the same
(measured).
"""

from __future__ import annotations

import ctypes
import sys

ARENAS = -8  # M_ARENA_MAX in malloc.h


def use_one_heap() -> None:
    """Make all threads of this process share one heap, if its C library is glibc."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(ARENAS, 1)


def return_unused() -> None:
    """Return Arrow's unused memory to the operating system."""
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
