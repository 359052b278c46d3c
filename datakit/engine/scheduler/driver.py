"""Runs a step: phases in order, tasks through an executor, results into the ledger, and the manifest last.

All policy is here, above the executor's seam, so it is the same on one machine and on a cluster. The driver holds a
small record per task and never data; it keeps two to three times as many attempts in flight as there are slots, biggest
input first. A step that is done costs one read of its manifest; a step that is half done costs one listing and one read
of its ledger, and only the missing tasks are submitted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash

from datakit.engine.executor import Executor
from datakit.engine.ledger.ledger import Digests, LedgerWriter, PhaseLine, driver_name, finished, place, read_ledger
from datakit.engine.ledger.packed_results import Results, unpack
from datakit.engine.observe.observer import Observer
from datakit.engine.quarantine import require_allowed
from datakit.engine.scheduler.finish import Tally, finish_step, remove_exchange, tidy_up, write_over_limit
from datakit.engine.scheduler.phase_run import OvertakenError, PhaseRun, Told
from datakit.engine.task import Output, Phase, Plan, Step, Task, encode
from datakit.errors import PartialError, StorageError
from datakit.storage import atomic, stale_files, urls
from datakit.storage.manifest import PARTIAL_NAME, Manifest, find_manifest

SHARED_FOLDER = "exchange/shared"

ExecutorFactory = Callable[[], Executor]


@dataclass(frozen=True)
class RunOptions:
    """Operation parameters of a run; none of them is in a fingerprint."""

    driver: str = field(default_factory=driver_name)


def run_step(step: Step, plan: Plan, executor: ExecutorFactory, options: RunOptions, observer: Observer) -> Manifest:
    """Run a step to its manifest, or find it done. The executor is asked for when the first task must run.

    Raises InputError (the user must act), PartialError (some tasks failed, the others are kept), StepFailedError.
    """
    standing = find_manifest(step.directory)
    if standing is not None:
        tidy_up(step)
        observer.step_ended(step, standing, True)
        return standing
    observer.step_started(step)
    run = StepRun(step, executor, LedgerWriter(step.directory, options.driver), observer)
    try:
        manifest = run.run(plan)
    except OvertakenError as overtaken:
        manifest = overtaken.manifest
        remove_exchange(step)  # what our last attempts left there
    except BaseException as error:
        observer.step_failed(step, error)
        raise
    finally:
        run.ledger.close()
    observer.step_ended(step, manifest, False)
    return manifest


class StepRun:
    """One run of one step."""

    def __init__(self, step: Step, executor: ExecutorFactory, ledger: LedgerWriter, observer: Observer) -> None:
        self.step, self.ledger, self.observer, self._executor = step, ledger, observer, executor
        stale_files.remove_dead_files(step.directory)
        self._done = finished(read_ledger(step.directory))
        self._sizes = {info.path: info.size for info in urls.listing(step.directory)} if self._done else {}
        self._tally, self._before = Tally(), xxhash.xxh3_128()
        self._begun = False
        self.ledger.begin()

    def run(self, plan: Plan) -> Manifest:
        """Drive the plan to its Output, then write the manifest."""
        try:
            output = self._drive(plan)
        except StorageError:
            standing = find_manifest(self.step.directory)
            if standing is None:
                raise
            raise OvertakenError(standing) from None  # its owner tidied up under our hands
        self.ledger.flush()
        stale_files.remove_dead_files(self.step.directory)  # also of those that were still dying when we began
        return finish_step(self.step, output, self._tally)

    def _drive(self, plan: Plan) -> Output:
        """Phase by phase. What its tasks are and what they said is not kept, unless the plan does."""
        try:
            phase = next(plan)
            while True:
                phase = plan.send(self._run_phase(phase))
        except StopIteration as stop:
            return stop.value

    def _run_phase(self, phase: Phase) -> Results:
        if len({task.key for task in phase.tasks}) != len(phase.tasks):
            raise ValueError(f"{self.step.stage}, phase {phase.name}: two tasks have the same key")
        digests = Digests(phase, self._before.hexdigest())
        found = {task.key: packed for task in phase.tasks if (packed := self._find(phase, task, digests))}
        pending, made = [task for task in phase.tasks if task.key not in found], {}
        if pending:
            keys, sizes = [task.key for task in phase.tasks], [task.input_bytes for task in phase.tasks]
            self.ledger.append(PhaseLine(phase.name, keys, sizes, time.time()))
            executor = self._executor()
            self._forget_failures()
            self.observer.phase_started(self.step, phase, len(found), executor.slots)
            told = Told(self.step, self.ledger, self.observer)
            running = PhaseRun(phase, digests, executor, told, Results(found.values()))
            made = running.run(pending, self._share(phase, digests))
        ordered = Results(found.get(task.key) or made[task.key] for task in phase.tasks)
        try:
            require_allowed(phase.tolerance, ordered)
        except PartialError as error:
            write_over_limit(self.step, phase.name, ordered, str(error))
            raise PartialError(f"{self.step.stage} of {self.step.dataset}: {error}") from error
        self._tally.enter(ordered)
        ordered.enter(self._before)
        return ordered

    def _forget_failures(self) -> None:
        """What an earlier run gave up is tried again: its list no longer says how things stand."""
        if not self._begun:
            urls.remove(urls.join(self.step.directory, PARTIAL_NAME))
        self._begun = True

    def _share(self, phase: Phase, digests: Digests) -> str | None:
        """Write what all tasks of the phase need, once, where every node can read it."""
        if not phase.shared:
            return None
        data = encode(phase.shared)
        path = f"{SHARED_FOLDER}/{phase.name}-{digests.of(phase.tasks[0])}.msgpack"
        atomic.commit_bytes(data, urls.join(self.step.directory, path))
        return path

    def _find(self, phase: Phase, task: Task, digests: Digests) -> bytes | None:
        """The packed result of an earlier run, if all that it wrote still is there with its size."""
        packed = self._done.get(place(phase.name, task.key, digests.of(task))) if self._done else None
        if packed is None or any(self._sizes.get(output.path) != output.bytes for output in unpack(packed).outputs):
            return None
        return packed
