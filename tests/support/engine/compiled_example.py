"""A kernel that takes little time to compile."""

from __future__ import annotations

from numba import njit


@njit(cache=True)
def increased(number):
    """One more than the number."""
    return number + 1


def warm() -> None:
    """Compile the kernel, or load it from disk."""
    increased(1)
