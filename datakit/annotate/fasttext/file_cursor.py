"""Reads numbers and arrays of a binary file in order, and refuses to read past its end.

Every size that a file states is compared with the bytes that are left before anything is allocated, so a damaged file
causes an error instead of a crash or a huge allocation. All numbers are little-endian.
"""

from __future__ import annotations

import struct

import numpy as np

from datakit.errors import UnreadableError


class FileCursor:
    """A position in the bytes of a file. `data`: uint8 [size]; `name`: the file's name, for messages."""

    def __init__(self, data: np.ndarray, name: str) -> None:
        self.data = data
        self.name = name
        self.position = 0

    def numbers(self, layout: str) -> tuple[int | float, ...]:
        """Read numbers; `layout` has one character of `struct` for each, for example "iid"."""
        size = struct.calcsize(f"<{layout}")
        start = self.skip(size, "its header")
        return struct.unpack(f"<{layout}", self.data[start : start + size].tobytes())

    def integers(self, layout: str) -> tuple[int, ...]:
        """Read integers; see `numbers`."""
        return tuple(int(number) for number in self.numbers(layout))

    def flag(self, meaning: str) -> bool:
        """Read one byte that must be 0 or 1."""
        (value,) = self.integers("B")
        self.require(value <= 1, f"{meaning} is neither true nor false")
        return bool(value)

    def array(self, kind: str, count: int, meaning: str) -> np.ndarray:
        """Read `count` numbers of a numpy type such as "<f4". The array is a copy, because numbers in a file are not
        aligned.
        """
        self.require(count >= 0, f"the size of {meaning} is negative")
        start = self.skip(count * np.dtype(kind).itemsize, meaning)
        return np.frombuffer(self.data, kind, count, start).copy()

    def skip(self, size: int, meaning: str) -> int:
        """Move past `size` bytes, and return the position of the first of them."""
        start = self.position
        self.require(size <= len(self.data) - start, f"it ends inside {meaning}")
        self.position = start + size
        return start

    def require(self, condition: bool, problem: str) -> None:
        """Raise UnreadableError with the problem unless the condition holds."""
        if not condition:
            raise UnreadableError(
                f"{self.name} is not a valid fastText model: {problem}; compare its size and sha256 with the original"
            )
