"""Bisects the input list of a task that dies with no record in progress, to find the entry that kills it.

The bisection takes log2(entries) attempts. Each attempt runs a task that gets only the first half of the suspect
entries. Since this task must write the same files for its entries as the whole task would (see `Task.bisect_argument`),
the output of good halves is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from datakit.engine.task import Task

NAMES = ("name", "path", "output")  # keys under which an entry that is a dict may hold its name


@dataclass
class InputBisection:
    """The search for the bad entry in a task's input list; the entry is in the range [first, stop)."""

    task: Task
    first: int
    stop: int

    @staticmethod
    def possible(task: Task) -> bool:
        """Return True if the task allows bisection and has more than one entry."""
        return bool(task.bisect_argument) and len(task.arguments[task.bisect_argument]) > 1

    @staticmethod
    def of(task: Task) -> InputBisection:
        """Start a search over all entries."""
        return InputBisection(task, 0, len(task.arguments[task.bisect_argument]))

    def next_task(self) -> Task:
        """Return a task for the first half of the suspect entries, with the key of the whole task."""
        argument = self.task.bisect_argument
        entries = self.task.arguments[argument][self.first : self._middle]
        return replace(self.task, arguments={**self.task.arguments, argument: entries}, bisect_argument="")

    def narrow(self, died: bool) -> None:
        """Continue with the first half if its attempt died, otherwise with the second."""
        self.first, self.stop = (self.first, self._middle) if died else (self._middle, self.stop)

    @property
    def found(self) -> str | None:
        """The name of the bad entry, or None while more than one entry is suspect."""
        if self.stop - self.first > 1:
            return None
        entry: Any = self.task.arguments[self.task.bisect_argument][self.first]
        if isinstance(entry, dict):
            entry = next((entry[name] for name in NAMES if name in entry), f"entry {self.first}")
        return str(entry)

    @property
    def _middle(self) -> int:
        return (self.first + self.stop) // 2
