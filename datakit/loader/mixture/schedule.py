"""Checks and looks up values that change at given steps (sequence length, batch size), and converts steps to slots."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from datakit.errors import LoaderError


@dataclass(frozen=True)
class Schedule:
    """Pairs (first step, value), such as `Schedule(((0, 4096), (20_000, 32_768)))`, with steps ascending from 0. Each
    value applies until the first step of the next pair.
    """

    pairs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, value: int | Schedule, name: str) -> Schedule:
        """Return `value` as a schedule, after checking it. A single number applies to all steps. Raises a
        LoaderError that mentions `name` if the steps do not ascend from 0 or a value is not positive.
        """
        schedule = value if isinstance(value, Schedule) else cls(((0, value),))
        if not schedule.pairs or schedule.pairs[0][0] != 0:
            raise LoaderError(f"{name}: a schedule must start at step 0; this one is {schedule.pairs}")
        for (before, _), (after, _) in pairwise(schedule.pairs):
            if after <= before:
                raise LoaderError(f"{name}: step {after} follows step {before}; list steps in ascending order")
        for step, number in schedule.pairs:
            if number < 1:
                raise LoaderError(f"{name} is {number} from step {step} on; it must be at least 1")
        return schedule

    @cached_property
    def _steps(self) -> list[int]:
        return [step for step, _ in self.pairs]

    def at(self, step: int) -> int:
        return self.pairs[bisect_right(self._steps, step) - 1][1]

    def changes(self) -> list[tuple[int, int]]:
        """Return (step, value) for step 0 and for each step at which the value changes."""
        found = [self.pairs[0]]
        found.extend(pair for pair in self.pairs[1:] if pair[1] != found[-1][1])
        return found


class SlotAxis:
    """Converts steps to slots and back. A slot is a row's index, counted over all batches, padding rows included."""

    def __init__(self, batch_size: Schedule) -> None:
        self._steps, self._sizes = zip(*batch_size.pairs, strict=True)
        self._slots = [0]
        for i in range(1, len(self._steps)):
            self._slots.append(self._slots[-1] + (self._steps[i] - self._steps[i - 1]) * self._sizes[i - 1])

    def first_slot(self, step: int) -> int:
        """Return the slot of the first row of batch `step`."""
        i = bisect_right(self._steps, step) - 1
        return self._slots[i] + (step - self._steps[i]) * self._sizes[i]

    def step_of(self, slot: int) -> int:
        i = bisect_right(self._slots, slot) - 1
        return self._steps[i] + (slot - self._slots[i]) // self._sizes[i]
