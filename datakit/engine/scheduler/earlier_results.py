"""Finds the results of earlier runs that a step can reuse, from its ledger and one listing of its files.

A result is reused if all files that the task wrote exist with their recorded sizes, or if those that are missing were
dropped (`drops.py`). Memory: one packed result per finished task, and the sizes of the step's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from datakit.engine.ledger.ledger import (
    Digests,
    DroppedLine,
    LedgerWriter,
    Line,
    UnknownLine,
    finished,
    read_segments,
    segments_of,
    skipped_note,
    task_id,
)
from datakit.engine.ledger.packed_results import unpack
from datakit.engine.scheduler.drops import Drops, Passed, folder_of
from datakit.engine.task import OutputFile, Phase, Step, Task
from datakit.errors import DivergentOutputError
from datakit.storage import urls


class EarlierResults:
    """The results and files of earlier runs of a step. drops: the folders that were dropped."""

    def __init__(self, step: Step, ledger: LedgerWriter) -> None:
        self._step, self._ledger = step, ledger
        self._segments: dict[str, int] = {}  # the size of each segment of the ledger when it was read
        self._done, self._sizes = dict[str, bytes](), dict[str, int]()
        self.drops: Drops = Drops(step, ledger)

    def read(self) -> str:
        """Read the results of finished tasks, packed, and the files that exist. Return a message for the user if this
        version does not understand some lines of the ledger, and otherwise "".
        """
        unknown, dropped = 0, list[DroppedLine]()

        def known() -> Iterator[Line]:
            nonlocal unknown
            for line in read_segments(list(self._segments)):
                if isinstance(line, UnknownLine):
                    unknown += 1
                    continue
                if isinstance(line, DroppedLine):
                    dropped.append(line)
                yield line

        self._segments = segments_of(self._step.directory)
        self._done = finished(known())
        self.drops.learn(dropped)
        self._sizes = {info.path: info.size for info in urls.listing(self._step.directory)} if self._done else {}
        self.drops.found(self._sizes)
        return f"{self._step.stage}: {skipped_note(unknown, self._step.directory)}" if unknown else ""

    def learns_of_drops(self) -> bool:
        """Return True if another driver has dropped files since the ledger was last read. This is called after each
        attempt that has missed a file, so it reads only the segments to which another driver has added lines.
        """
        before, self._segments = self._segments, segments_of(self._step.directory)
        grown = [url for url, size in self._segments.items() if before.get(url) != size and not self._ledger.owns(url)]
        return self.drops.learn(line for line in read_segments(grown) if isinstance(line, DroppedLine))

    def reusable(self, phase: Phase, digests: Digests) -> tuple[dict[str, bytes], list[Task]]:
        """Return the packed results that can be reused, and the tasks among them whose files were dropped. If any task
        of the phase must run, the tasks whose files were dropped must run, too.
        """
        found: dict[str, bytes] = {}
        incomplete: list[Task] = []
        for task in phase.tasks:
            packed = self._done.get(task_id(phase.name, task.key, digests.of(task))) if self._done else None
            missing = self._missing([packed]) if packed else []
            if packed and all(map(self.drops.includes, missing)):
                found[task.key] = packed
                incomplete += [task] if missing else []
        if len(found) == len(phase.tasks):
            return found, incomplete
        for task in incomplete:
            del found[task.key]
        return found, []

    def pass_over(self, phase: Phase, digests: Digests, incomplete: list[Task]) -> None:
        """Record that the results of a whole phase are reused. incomplete: its tasks whose files were dropped."""
        if not incomplete:
            self.drops.reached(phase)
            return
        packed = (self._done[task_id(phase.name, task.key, digests.of(task))] for task in incomplete)
        folders = {folder_of(output.path) for output in self._missing(packed)}
        self.drops.passes(Passed(phase, digests, incomplete, folders))

    def pass_again(self, passed: Passed) -> None:
        """Find out which files of a phase are still missing, after another driver has changed the step's files."""
        found, incomplete = self.reusable(passed.phase, passed.digests)
        lost = [task for task in passed.phase.tasks if task.key not in found]
        self.pass_over(passed.phase, passed.digests, incomplete or lost)

    def require_same_files(self, passed: Passed, made: dict[str, bytes]) -> None:
        """Raise DivergentOutputError unless repeated tasks have written the same files as in the earlier run. made: the
        new results of these tasks, packed.
        """
        for task in passed.tasks:
            before = self._done[task_id(passed.phase.name, task.key, passed.digests.of(task))]
            if unpack(made[task.key]).outputs != unpack(before).outputs:
                raise DivergentOutputError(
                    f"{self._step.stage} of {self._step.dataset}, phase {passed.phase.name}: task {task.key} has "
                    f"written different files than in an earlier run; remove {self._step.directory} and run again"
                )

    def _missing(self, packed: Iterable[bytes]) -> list[OutputFile]:
        outputs = (output for result in packed for output in unpack(result).outputs)
        return [output for output in outputs if self._sizes.get(output.path) != output.bytes]
