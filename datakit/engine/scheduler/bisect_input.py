"""Finds the entry of a task's input that kills it, where no record was in hand: halves, and halves of halves.

Each half is a task of its own that writes the same files for its entries as the whole would (the stage says so by
`Task.halves`), so what the good halves write is kept. log2(entries) attempts; what is left at the end has a name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from datakit.engine.task import Task

NAMES = ("name", "path", "output")  # where an entry that is a table keeps its name


@dataclass
class Halving:
    """The search in one task's list: the suspects are entries [first, stop)."""

    task: Task
    first: int
    stop: int

    @staticmethod
    def possible(task: Task) -> bool:
        """Whether a task says how, and has more than one entry."""
        return bool(task.halves) and len(task.arguments[task.halves]) > 1

    @staticmethod
    def of(task: Task) -> Halving:
        """The search, not begun yet."""
        return Halving(task, 0, len(task.arguments[task.halves]))

    def next_task(self) -> Task:
        """The first half of the suspects, under the task's own key."""
        entries = self.task.arguments[self.task.halves][self.first : self._middle]
        return replace(self.task, arguments={**self.task.arguments, self.task.halves: entries}, halves="")

    def enter(self, died: bool) -> None:
        """How that went."""
        self.first, self.stop = (self.first, self._middle) if died else (self._middle, self.stop)

    @property
    def found(self) -> str | None:
        """The name of the entry that is left, if only one is."""
        if self.stop - self.first > 1:
            return None
        entry: Any = self.task.arguments[self.task.halves][self.first]
        if isinstance(entry, dict):
            entry = next((entry[name] for name in NAMES if name in entry), f"entry {self.first}")
        return str(entry)

    @property
    def _middle(self) -> int:
        return (self.first + self.stop) // 2
