"""Finds the input entry that kills a task, if no record is known to be the cause.

The task's list of entries is bisected. Each half is a task of its own that writes the same files for its entries as the
whole would (`Task.bisect_argument` promises that), so the output of good halves is kept. Takes log2(entries) attempts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from datakit.engine.task import Task

NAMES = ("name", "path", "output")  # keys under which an entry that is a table may hold its name


@dataclass
class InputBisection:
    """The search in one task's list: the bad entry is in [first, stop)."""

    task: Task
    first: int
    stop: int

    @staticmethod
    def possible(task: Task) -> bool:
        """Return True if the task allows a bisection and has more than one entry."""
        return bool(task.bisect_argument) and len(task.arguments[task.bisect_argument]) > 1

    @staticmethod
    def of(task: Task) -> InputBisection:
        """Start a search over all entries."""
        return InputBisection(task, 0, len(task.arguments[task.bisect_argument]))

    def next_task(self) -> Task:
        """Return the task of the first half of the suspects, under the original key."""
        argument = self.task.bisect_argument
        entries = self.task.arguments[argument][self.first : self._middle]
        return replace(self.task, arguments={**self.task.arguments, argument: entries}, bisect_argument="")

    def narrow(self, died: bool) -> None:
        """Keep the first half if its attempt died, else the second."""
        self.first, self.stop = (self.first, self._middle) if died else (self._middle, self.stop)

    @property
    def found(self) -> str | None:
        """Name of the bad entry; None until it is the only one left."""
        if self.stop - self.first > 1:
            return None
        entry: Any = self.task.arguments[self.task.bisect_argument][self.first]
        if isinstance(entry, dict):
            entry = next((entry[name] for name in NAMES if name in entry), f"entry {self.first}")
        return str(entry)

    @property
    def _middle(self) -> int:
        return (self.first + self.stop) // 2
