"""Reduces the memory of a validating process: its threads share one heap, Arrow's unused memory is returned, and Arrow
does not import pandas.

By default, the C library gives each thread a heap of its own, and memory that one thread has freed cannot be used by
another. With one heap, the peak on 121 MB of text is 250 MiB instead of 280 to 300 MiB, and the CPU time is the same
(measured). Arrow imports pandas, if it is installed, when it converts the first Python value. This takes 0.25 s of CPU
time and 40 MB of memory (measured), and validation never uses pandas.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

ARENAS = -8  # M_ARENA_MAX in malloc.h
PANDAS = "pandas"


def use_one_heap() -> None:
    """Make all threads of this process share one heap, if its C library is glibc."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(ARENAS, 1)


class _WithoutPandas:
    """Finds no pandas; other finders find everything else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for pandas."""
        if name == PANDAS:
            raise ModuleNotFoundError(name)
        return None


def leave_out_pandas() -> None:
    """Make Arrow look for pandas now, and not find it. Arrow does not look again in this process; other code can still
    import pandas.
    """
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.scalar(0)
    except ModuleNotFoundError:  # without pyarrow, the checks that need it are skipped
        return
    finally:
        sys.meta_path.remove(finder)


def return_unused() -> None:
    """Return Arrow's unused memory to the operating system."""
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
