"""Defines `LazySlice`, the part of a cache or of a run that `cache[2:5]` or `loader[2:5]` selects. Making a slice reads
nothing; the elements are read on access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import SupportsIndex, TypeVar, overload

T = TypeVar("T")


class LazySlice(Sequence[T]):
    """The elements of a sequence at indices `numbers`. `get(index)` reads one; `read(start, stop)` reads a range."""

    def __init__(
        self, name: str, numbers: range, get: Callable[[int], T], read: Callable[[int, int], Iterator[T]]
    ) -> None:
        self.numbers = numbers
        self._name, self._get, self._read = name, get, read

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> LazySlice[T]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T | LazySlice[T]:
        if isinstance(index, slice):
            return LazySlice(self._name, self.numbers[index], self._get, self._read)
        try:
            number = self.numbers[index]
        except IndexError as error:
            raise IndexError(f"index {index} is out of range: {self!r} has {len(self):,} elements") from error
        return self._get(number)

    def __iter__(self) -> Iterator[T]:
        if self.numbers.step == 1 and self.numbers:
            return self._read(self.numbers.start, self.numbers.stop)
        return map(self._get, self.numbers)

    def __repr__(self) -> str:
        step = f":{self.numbers.step}" if self.numbers.step != 1 else ""
        return f"{self._name}[{self.numbers.start}:{self.numbers.stop}{step}]"
