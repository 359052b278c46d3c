"""Derives the state of a step and of its tasks (done, failed, retrying or waiting) from the step's files alone.

The state can be derived while the step runs and after its driver has died. Only the ledger, the manifest and the list
of failures are read. A started task without an outcome counts as `waiting`: the files do not show whether a live driver
is working on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from datakit.engine.executor import Cause
from datakit.engine.ledger.ledger import AttemptLine, DriverLine, PhaseLine, UnknownLine, read_ledger
from datakit.errors import NewerFormatError, NotFoundError, RefusedInputsError
from datakit.storage import urls
from datakit.storage.json_data import decode
from datakit.storage.manifest import FILE_NAME, PARTIAL_NAME, find_manifest


@dataclass(frozen=True)
class TaskStatus:
    """One task. `state` is done, failed, retrying or waiting. `seconds`, `peak_memory` (in bytes) and `budget` (in
    bytes) are from the last attempt. `quarantined` is the number of records that the task skipped.
    """

    phase: str
    key: str
    state: str
    attempts: int = 0
    last_failure: str = ""
    seconds: float = 0.0
    peak_memory: int = 0
    budget: int = 0
    quarantined: int = 0


@dataclass(frozen=True)
class PhaseStatus:
    """One phase. `peak_memory` and `budget`, in bytes, are those of the attempt that came closest to its budget.
    `peak_resident`, in bytes, is the largest resident memory of any attempt, including mapped files and inherited
    pages.
    """

    phase: str
    tasks: int
    done: int = 0
    attempts: int = 0
    peak_memory: int = 0
    budget: int = 0
    peak_resident: int = 0


@dataclass(frozen=True)
class StepStatus:
    """One step. `state` is done, partial, unfinished or newer (done by a newer version of datakit); `tasks` are in the
    order in which the phases listed them. `cpu_seconds` and `seconds` are sums over all attempts in the ledger;
    `peak_memory`, in bytes, is the maximum over all attempts, and `budget` is that of the attempt with this maximum.
    `elapsed` is the number of seconds that drivers spent on the step; `ended` is the time of the last line in the
    ledger, in seconds since 1970 (None if there is no line). `failure` is the reason why the step is partial, if no
    task failed. `unknown_lines` is the number of ledger lines that a newer version wrote and that this version does not
    understand.
    """

    directory: str
    state: str
    tasks: list[TaskStatus] = field(repr=False)
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    peak_memory: int = 0
    budget: int = 0
    elapsed: float = 0.0
    ended: float | None = None
    failure: str = ""
    phases: list[PhaseStatus] = field(default_factory=list, repr=False)
    unknown_lines: int = 0


def read_status(directory: str) -> StepStatus:
    """Read the state of the step in `directory`."""
    tasks: dict[tuple[str, str], TaskStatus] = {}
    attempts: list[AttemptLine] = []
    elapsed, ended, unknown = 0.0, None, 0
    for line in read_ledger(directory):
        if isinstance(line, UnknownLine):
            unknown += 1
            continue
        elapsed += max(0.0, line.time - ended) if ended is not None and not isinstance(line, DriverLine) else 0.0
        ended = line.time
        if isinstance(line, PhaseLine):
            for key in line.keys:
                tasks.setdefault((line.phase, key), TaskStatus(line.phase, key, "waiting"))
        elif isinstance(line, AttemptLine):
            attempts.append(line)
            before = tasks.get((line.phase, line.key), TaskStatus(line.phase, line.key, "waiting"))
            tasks[line.phase, line.key] = _after(before, line)
    state, failure = _state(directory), ""
    if state == "partial":
        tasks |= {name: replace(task, state="failed") for name, task in tasks.items() if task.state == "retrying"}
        failure = _failure(directory)
    largest = max(attempts, key=lambda line: line.peak_memory, default=None)
    return StepStatus(
        directory,
        state,
        list(tasks.values()),
        cpu_seconds=sum(line.cpu_seconds for line in attempts),
        seconds=sum(line.seconds for line in attempts),
        peak_memory=largest.peak_memory if largest else 0,
        budget=largest.budget if largest else 0,
        elapsed=elapsed,
        ended=ended,
        failure=failure,
        phases=_phases(list(tasks.values()), attempts),
        unknown_lines=unknown,
    )


def _phases(tasks: list[TaskStatus], attempts: list[AttemptLine]) -> list[PhaseStatus]:
    """Summarize the phases that have started, in order."""
    phases = {task.phase: PhaseStatus(task.phase, 0) for task in tasks}
    for task in tasks:
        phase = phases[task.phase]
        phases[task.phase] = replace(phase, tasks=phase.tasks + 1, done=phase.done + (task.state == "done"))
    for line in attempts:
        phase = replace(phases[line.phase], attempts=phases[line.phase].attempts + 1)
        if line.budget and line.peak_memory * phase.budget >= phase.peak_memory * line.budget:
            phase = replace(phase, peak_memory=line.peak_memory, budget=line.budget)
        phases[line.phase] = replace(phase, peak_resident=max(phase.peak_resident, line.peak_resident))
    return list(phases.values())


def _after(before: TaskStatus, line: AttemptLine) -> TaskStatus:
    return TaskStatus(
        line.phase,
        line.key,
        "done" if line.result is not None else "retrying",
        before.attempts + 1,
        before.last_failure if line.cause is Cause.DONE else f"{line.cause}: {line.message}",
        line.seconds,
        line.peak_memory,
        line.budget,
        sum(record.records for record in line.result.quarantined) if line.result is not None else 0,
    )


def _state(directory: str) -> str:
    try:
        if find_manifest(directory) is not None:
            return "done"
    except NewerFormatError:
        return "newer"
    return "partial" if urls.exists(urls.join(directory, PARTIAL_NAME)) else "unfinished"


class _Failure(msgspec.Struct, frozen=True):
    task: str | None
    why: str


class _Partial(msgspec.Struct, frozen=True):
    failed: list[_Failure]


def _failure(directory: str) -> str:
    """Return the reason why the step is partial (such as too many skipped records); "" if tasks failed."""
    url = urls.join(directory, PARTIAL_NAME)
    try:
        partial = decode(urls.read_bytes(url), _Partial)
    except NotFoundError:  # another driver has just continued the step and removed this list
        return ""
    except msgspec.DecodeError as error:
        return f"{url} cannot be read: {error}; run again"
    reasons = [entry.why for entry in partial.failed if entry.task is None]
    return str(RefusedInputsError(reasons, url)) if reasons[1:] else "".join(reasons)


def step_directories(directory: str) -> list[str]:
    """List the step directories at or below `directory`: those with a manifest, a ledger or a list of failures.

    Files inside a step (copies of a source's files, for example) may have the same names as a step's own files. Such
    files are ignored, since no step is inside another.
    """
    found: set[str] = set()
    for info in urls.listing(directory):
        parts = info.path.split("/")
        if parts[-1] in (FILE_NAME, PARTIAL_NAME):
            found.add(urls.join(directory, *parts[:-1]))
        elif len(parts) > 1 and parts[-2] == "ledger":
            found.add(urls.join(directory, *parts[:-2]))
    steps: list[str] = []
    for place in sorted(found, key=lambda place: f"{place}/"):
        if not steps or not f"{place}/".startswith(f"{steps[-1]}/"):
            steps.append(place)
    return steps
