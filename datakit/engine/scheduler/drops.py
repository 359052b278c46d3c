"""Drops exchange files that no later phase reads, and lets a resumed run do without them.

A phase names in `Phase.drops` the folders below `exchange/` that it is the last to read. Once it is complete, the
driver first makes a line in the ledger durable, together with the results of the phase, and then removes these folders.
So a driver that is killed at any point leaves either the files or the line. Small folders are left to the end of the
step, as a line would take longer to sync than the files are worth.

A later run reuses a result whose files are missing if the ledger says that they were dropped. Such a result is sound
only as long as no phase runs that reads the files. The run therefore remembers the phases that it passed in this way
(`Passed`) until it reaches the phase that is the last to read their files and finds its results complete. If it must
run a task before that (because a file was lost, or because a setting changed what the tasks are), it first runs the
tasks again whose files are missing. They write the same files, which are dropped again as soon as the phases that were
passed need them no more.

If two drivers work on the same step, one may drop files that the other's tasks are reading. The other driver then
finds a new line and the results in the ledger, and continues from there. A version that does not know the lines skips
them, finds that files are missing, and repeats the tasks that wrote them.
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
    """A phase whose results are reused although files are missing. tasks: those that wrote the missing files. folders:
    where these files were, as long as a phase that has not been reached yet may read them.
    """

    phase: Phase
    digests: Digests
    tasks: list[Task]
    folders: set[str]


class Drops:
    """The folders that any driver of a step has dropped, and the phases that this run passed without their files."""

    def __init__(self, step: Step, ledger: LedgerWriter) -> None:
        self._step, self._ledger = step, ledger
        self._lines = 0  # the number of lines known, our own included
        self._dropped = set[str]()
        self._present = set[str]()  # folders that were dropped but hold files: those of a killed driver, or new ones
        self._passed: list[Passed] = []

    def learn(self, lines: Iterable[DroppedLine]) -> bool:
        """Add the lines of the whole ledger; return True if any of them is new."""
        before, known = self._lines, list(lines)
        self._lines = len(known)
        self._dropped.update(folder for line in known for folder in line.folders)
        return self._lines > before

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
        """Return, and forget, the phases whose missing files are needed now that a task must run."""
        passed, self._passed = self._passed, []
        self._present.update(folder for one in passed for folder in one.folders)
        return passed

    def reached(self, phase: Phase) -> None:
        """Forget the phases whose files no later phase reads: this phase is complete, so its inputs are not needed."""
        complete = [phase]
        while complete:
            unread = complete.pop().drops
            for passed in self._passed:
                passed.folders.difference_update(unread)
            complete += [passed.phase for passed in self._passed if not passed.folders]
            self._passed = [passed for passed in self._passed if passed.folders]

    def drop(self, phase: Phase, sizes: dict[str, int]) -> None:
        """Drop what a complete phase was the last to read. sizes: the number of bytes written to each folder."""
        folders = [folder for folder in phase.drops if sizes.get(folder, 0) >= DROP_BYTES]
        # A folder that is dropped once more needs another line, from which a second driver learns where its files are.
        new = [folder for folder in folders if folder in self._present or folder not in self._dropped]
        if new:
            self._ledger.append(DroppedLine(phase.name, new, time.time()))
            self._ledger.flush()
            self._lines += 1
            self._dropped.update(new)
        for folder in folders:
            removal.remove_tree(urls.join(self._step.directory, EXCHANGE_FOLDER, folder))
        self._present.difference_update(folders)


def folder_of(path: str) -> str:
    """Return the folder below `exchange/` that holds the file; "" for a file elsewhere."""
    first, _, rest = path.partition("/")
    return rest.partition("/")[0] if first == EXCHANGE_FOLDER else ""
