"""A value that changes at named steps: `4096`, or `Schedule(((0, 4096), (20_000, 32_768)))`."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from datakit.errors import LoaderError


@dataclass(frozen=True)
class Schedule:
    """Pairs (first step, value), steps ascending from 0; each value holds until the next pair."""

    pairs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, value: int | Schedule, name: str) -> Schedule:
        """A plain number is a schedule that never changes. `name` is what an error calls it."""
        schedule = value if isinstance(value, Schedule) else cls(((0, value),))
        schedule.check(name)
        return schedule

    def check(self, name: str) -> None:
        """Raises LoaderError where the steps do not ascend from 0 or a value is not positive."""
        if not self.pairs or self.pairs[0][0] != 0:
            raise LoaderError(f"{name}: a schedule begins at step 0, this one is {self.pairs}")
        for (before, _), (after, _) in zip(self.pairs, self.pairs[1:], strict=False):
            if after <= before:
                raise LoaderError(f"{name}: step {after} follows step {before}; the steps of a schedule ascend")
        for step, value in self.pairs:
            if value < 1:
                raise LoaderError(f"{name}: {value} from step {step} on; it must be at least 1")

    @cached_property
    def _steps(self) -> list[int]:
        return [step for step, _ in self.pairs]

    def at(self, step: int) -> int:
        """The value at `step`."""
        return self.pairs[bisect_right(self._steps, step) - 1][1]

    def changes(self) -> list[tuple[int, int]]:
        """(step, value) wherever the value becomes another one, the first step included."""
        kept = [self.pairs[0]]
        kept.extend(pair for pair in self.pairs[1:] if pair[1] != kept[-1][1])
        return kept


class SlotAxis:
    """Steps to slots and back: slot n is the n-th row of the run, counted over all batches, padding or not."""

    def __init__(self, batch_size: Schedule) -> None:
        self._steps = [step for step, _ in batch_size.pairs]
        self._sizes = [size for _, size in batch_size.pairs]
        self._slots = [0]
        for i in range(1, len(self._steps)):
            self._slots.append(self._slots[-1] + (self._steps[i] - self._steps[i - 1]) * self._sizes[i - 1])

    def first_slot(self, step: int) -> int:
        """The slot of the first row of batch `step`."""
        i = bisect_right(self._steps, step) - 1
        return self._slots[i] + (step - self._steps[i]) * self._sizes[i]

    def step_of(self, slot: int) -> int:
        """The step whose batch holds `slot`."""
        i = bisect_right(self._slots, slot) - 1
        return self._steps[i] + (slot - self._slots[i]) // self._sizes[i]
