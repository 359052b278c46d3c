"""Drops exchange files that no later phase reads, and lets a resumed run continue without them.

`Phase.drops` names folders below `exchange/` that no phase after this one reads. When the phase is complete, the driver
appends a line to the ledger and syncs it, together with the results of the phase; only then does it remove the folders.
So a driver that is killed at any point leaves either the files or the line. Small folders are kept until the step ends,
because syncing a line would cost more than their disk space is worth.

A later run reuses a result whose files are missing if the ledger says that they were dropped. This is safe only if no
task that reads these files has to run again. The run therefore remembers the phases that it passed in this way
(`Passed`) until it reaches the phase that dropped their files and finds its results complete. If a task has to run
before that (because a file was lost, or because a changed setting changed the tasks), the run first repeats the tasks
whose files are missing. They write the same files again.

If two drivers work on the same step, one may drop files that the other's tasks are reading. The other driver then finds
the line and the results in the ledger and continues from there. An earlier version of datakit skips the lines, finds
that files are missing, and repeats the tasks that wrote them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from datakit.engine.ledger.ledger import Digests, DroppedLine, LedgerWriter
from datakit.engine.task import EXCHANGE_FOLDER, OutputFile, Phase, Step, Task
from datakit.storage import removal, urls

DROP_BYTES = 64 << 20  # smaller folders are not dropped


@dataclass(frozen=True)
class Passed:
    """A phase whose results are reused although files are missing. tasks: the tasks that wrote the missing files.
    waits_for: the phases that dropped these files and have not been reached yet.
    """

    phase: Phase
    digests: Digests
    tasks: list[Task]
    waits_for: set[str]


class Drops:
    """The folders that any driver of a step has dropped, and the phases that this run passed without their files."""

    def __init__(self, step: Step, ledger: LedgerWriter) -> None:
        self._step, self._ledger = step, ledger
        self._by: dict[str, str] = {}  # folder -> the phase that dropped it
        self._passed: list[Passed] = []

    def learn(self, lines: Iterable[DroppedLine]) -> bool:
        """Add the lines of a ledger. Return True if a folder in them is new."""
        before = len(self._by)
        self._by |= {folder: line.by for line in lines for folder in line.folders}
        return len(self._by) > before

    def by(self, output: OutputFile) -> str | None:
        """Return the phase that dropped this file; None if the file was not dropped."""
        return self._by.get(folder_of(output.path))

    def passes(self, passed: Passed) -> None:
        """Remember a phase whose results are reused without some of its files."""
        self._passed.append(passed)

    def take_passed(self) -> list[Passed]:
        """Return and forget all remembered phases: a task must run, so their missing files are needed."""
        passed, self._passed = self._passed, []
        return passed

    def reached(self, phase: str) -> None:
        """Forget the phases whose files this phase dropped. It is complete, so no task needs these files."""
        complete = [phase]
        while complete:
            name = complete.pop()
            for passed in self._passed:
                passed.waits_for.discard(name)
            complete += [passed.phase.name for passed in self._passed if not passed.waits_for]
            self._passed = [passed for passed in self._passed if passed.waits_for]

    def drop(self, phase: Phase, sizes: dict[str, int]) -> None:
        """Drop the folders that no phase after this complete one reads. sizes: the number of bytes written to each
        folder.
        """
        folders = [folder for folder in phase.drops if sizes.get(folder, 0) >= DROP_BYTES]
        new = [folder for folder in folders if folder not in self._by]
        if new:
            self._ledger.append(DroppedLine(phase.name, new, time.time()))
            self._ledger.flush()
            self._by |= dict.fromkeys(new, phase.name)
        for folder in folders:
            removal.remove_tree(urls.join(self._step.directory, EXCHANGE_FOLDER, folder))


def folder_of(path: str) -> str:
    """Return the folder below `exchange/` that holds the file; "" for a file elsewhere."""
    first, _, rest = path.partition("/")
    return rest.partition("/")[0] if first == EXCHANGE_FOLDER else ""
