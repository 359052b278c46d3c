"""Measures, while a child runs, how much it has written and how much space is left on the disks that it uses, and
decides when it must be stopped.

The kernel counts the bytes that a process passes to write calls, whatever library makes them, so no writer has to
report what it writes. Memory-mapped scratch files are not counted; those of the dedup stage are at most a few times as
large as the texts that a task compares. The child compares its count with the limit once more after each task, so
whether a task is refused does not depend on when the parent process last checked.

Cost: two or three system calls per attempt every CHECK_SECONDS. A child can exceed its limit by what it writes in this
time: 0.1 to 0.5 GB on a fast disk. Each process that runs attempts checks its own machine's disks, so the disks of all
nodes of a Ray cluster are watched. If a disk becomes full between two checks, writing fails, and `storage/io_errors.py`
composes the same kind of error.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from datakit.engine.disk_limits import DiskLimits, DiskSpace, WriteLimit, size_text
from datakit.engine.executor import Attempt
from datakit.engine.task import Task
from datakit.engine.worker.heartbeat import Heartbeat
from datakit.errors import DatakitError, ExpansionError, NoSpaceError
from datakit.printable import one_line
from datakit.storage import urls

CHECK_SECONDS = 0.2
_WRITTEN = b"wchar: "


def written_bytes(pid: int | str) -> int:
    """Return how many bytes a process has written since it was forked; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            return int(file.read().partition(_WRITTEN)[2].partition(b"\n")[0] or 0)
    except (OSError, ValueError):  # the process is gone, or the kernel counts no bytes, which `datakit doctor` reports
        return 0


def write_limit(attempt: Attempt, task: Task) -> WriteLimit:
    """Return the limit on what a task of the attempt may write."""
    return WriteLimit(attempt.limits, max(0, task.input_bytes if task.stored_bytes is None else task.stored_bytes))


def excess(attempt: Attempt, number: int, written: int, file: str = "") -> ExpansionError | None:
    """Return the error for the attempt's task with this index if it has written too much, else None. file: the file
    that the task was reading, if it has announced one.
    """
    task = (attempt.task, *attempt.more)[number]
    limit = write_limit(attempt, task)
    if written <= limit.bytes:
        return None
    return limit.error(written, one_line(file or task.file), f"task {task.key} of phase {attempt.phase}")


def shortage(step_directory: str, limits: DiskLimits) -> NoSpaceError | None:
    """Return an error if too little space is free on the disk of temporary files or of a local step directory."""
    places = {tempfile.gettempdir(): "set TMPDIR to a larger disk"}
    if urls.is_local(step_directory):
        places[urls.local_path(step_directory)] = "choose another --root"
    for place, remedy in places.items():
        try:
            space = DiskSpace.of(place)
        except OSError:  # a network disk that does not answer: writing there fails, too, and the task reports that
            continue
        floor = limits.free_bytes(space.size)
        if space.size and space.free < floor:  # a file system without a size, such as a mounted store, is never full
            return NoSpaceError(
                f"the disk of {place} on {os.uname().nodename} has only {size_text(space.free)} free, and "
                f"{size_text(floor)} must stay free (limits.min_free_bytes), so the run was stopped before the disk "
                f"was full; free some space (`datakit gc` lists leftovers) or {remedy}, and run again: finished work "
                "is kept"
            )
    return None


@dataclass
class DiskWatch:
    """Checks the disk use of one attempt's child.

    written: the number of bytes that the child had written in this attempt at the last check. report: called with
    `written` after each measurement. before: the number of bytes that the child had written before this attempt.
    """

    attempt: Attempt
    report: Callable[[int], None] = lambda written: None
    written: int = 0
    before: int = 0
    _due: float = field(default_factory=time.monotonic)

    def check(self, pid: int, heartbeat: Heartbeat) -> DatakitError | None:
        """Return the reason why the child must be stopped now, or None. Does nothing if the last check was less than
        CHECK_SECONDS ago.
        """
        if time.monotonic() < self._due:
            return None
        self._due = time.monotonic() + CHECK_SECONDS
        # Read before `state`: otherwise, if a task began in between, its writes would be charged to the previous task.
        self.written = max(self.written, written_bytes(pid) - self.before)
        state = heartbeat.state()
        self.report(self.written)
        file = state.in_progress.file if state.in_progress is not None else ""
        before = max(0, state.written_before - self.before)  # 0 if the first task has not begun
        too_much = excess(self.attempt, state.task, self.written - before, file)
        return too_much or shortage(self.attempt.step_directory, self.attempt.limits)
