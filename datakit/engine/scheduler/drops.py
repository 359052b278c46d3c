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
    folders: the folders of these files that a phase may read that has not been reached yet.
    """

    phase: Phase
    digests: Digests
    tasks: list[Task]
    folders: set[str]


class Drops:
    """The folders that any driver of a step has dropped, and the phases that this run passed without their files."""

    def __init__(self, step: Step, ledger: LedgerWriter) -> None:
        self._step, self._ledger = step, ledger
        self._lines = set[tuple[str, float]]()  # the phases and times of the known lines, our own included
        self._dropped = set[str]()
        self._present = set[str]()  # folders that were dropped but hold files: those of a killed driver, or new ones
        self._passed: list[Passed] = []

    def learn(self, lines: Iterable[DroppedLine]) -> bool:
        """Add lines of the ledger. Return True if any of them is new, even if all its folders were dropped before."""
        before = len(self._lines)
        for line in lines:
            self._lines.add((line.by, line.time))
            self._dropped.update(line.folders)
        return len(self._lines) > before

    def found(self, paths: Iterable[str]) -> None:
        """Note which files exist."""
        self._present = {folder_of(path) for path in paths}

    def includes(self, output: OutputFile) -> bool:
        """Return True if this file was dropped."""
        return folder_of(output.path) in self._dropped

    def passes(self, passed: Passed) -> None:
        """Remember a phase whose results are reused without some of its files."""
        self._passed.append(passed)

    def take_passed(self) -> list[Passed]:
        """Return and forget all remembered phases: a task must run, so their missing files are needed."""
        passed, self._passed = self._passed, []
        self._present.update(folder for one in passed for folder in one.folders)
        return passed

    def reached(self, phase: Phase) -> None:
        """Forget the phases whose files no phase after this complete one reads."""
        complete = [phase]
        while complete:
            unread = complete.pop().drops
            for passed in self._passed:
                passed.folders.difference_update(unread)
            complete += [passed.phase for passed in self._passed if not passed.folders]
            self._passed = [passed for passed in self._passed if passed.folders]

    def drop(self, phase: Phase, sizes: dict[str, int]) -> None:
        """Drop the folders that no phase after this complete one reads. sizes: the number of bytes written to each
        folder.
        """
        folders = [folder for folder in phase.drops if sizes.get(folder, 0) >= DROP_BYTES]
        # A folder that is dropped once more needs another line, from which a second driver learns where its files are.
        new = [folder for folder in folders if folder in self._present or folder not in self._dropped]
        if new:
            line = DroppedLine(phase.name, new, time.time())
            self._ledger.append(line)
            self._ledger.flush()
            self.learn([line])
        for folder in folders:
            removal.remove_tree(urls.join(self._step.directory, EXCHANGE_FOLDER, folder))
        self._present.difference_update(folders)


def folder_of(path: str) -> str:
    """Return the folder below `exchange/` that holds the file; "" for a file elsewhere."""
    first, _, rest = path.partition("/")
    return rest.partition("/")[0] if first == EXCHANGE_FOLDER else ""
