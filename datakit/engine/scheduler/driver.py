"""Runs a step's phases in order, reuses results of earlier runs, records new ones in the ledger, and finishes the step.

All decisions are made above the executor interface, so they are the same on one machine and on a cluster. The driver
holds a small amount of state per task but never the data itself. At any time, at most three attempts per slot are
running or waiting in the executor; the tasks with the largest inputs come first. For a finished step, the driver reads
only the manifest. For an unfinished step, it lists the files and reads the ledger once, and submits only the tasks that
are not done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import xxhash

from datakit.engine.executor import Executor
from datakit.engine.ledger.ledger import (
    Digests,
    LedgerWriter,
    Line,
    PhaseLine,
    UnknownLine,
    driver_name,
    finished,
    read_ledger,
    skipped_note,
    task_id,
)
from datakit.engine.ledger.packed_results import Results, unpack
from datakit.engine.observe.observer import Observer
from datakit.engine.quarantine import require_allowed
from datakit.engine.scheduler.finish import (
    Tally,
    clean_up_finished,
    finish_step,
    remove_exchange,
    write_over_limit,
    write_refusals,
)
from datakit.engine.scheduler.phase_run import OvertakenError, PhaseRun, StepContext
from datakit.engine.task import Output, Phase, Plan, Step, Task, encode
from datakit.errors import PartialError, RefusedInputsError, StorageError
from datakit.storage import atomic, removal, stale_files, urls
from datakit.storage.manifest import PARTIAL_NAME, Manifest, find_manifest

SHARED_FOLDER = "exchange/shared"

ExecutorFactory = Callable[[], Executor]


def run_step(
    step: Step, plan: Plan, executor: ExecutorFactory, observer: Observer, driver: str | None = None
) -> Manifest:
    """Run a step until its manifest is written, and return the manifest. A finished step is not run again.

    executor: a function that returns the executor; it is called only if a task must run.
    driver: the name of this run in the ledger; by default, a new name.
    Raises InputError (the user must act), PartialError (some tasks failed; other results are kept) or StepFailedError.
    """
    existing = find_manifest(step.directory)
    if existing is not None:
        clean_up_finished(step)
        observer.step_ended(step, existing, True)
        return existing
    observer.step_started(step)
    ledger = LedgerWriter(step.directory, driver or driver_name(), step.version, step.code)
    run = StepRun(step, executor, ledger, observer)
    try:
        manifest = run.run(plan)
    except OvertakenError as overtaken:
        manifest = overtaken.manifest
        remove_exchange(step)  # our last attempts may have written files there since the other driver removed it
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
        self.step = step
        self.ledger = ledger
        self.observer = observer
        self._executor = executor
        stale_files.remove_dead_files(step.directory)
        self._done = self._read_done()
        self._sizes = {info.path: info.size for info in urls.listing(step.directory)} if self._done else {}
        self._tally, self._before = Tally(), xxhash.xxh3_128()
        self._started = False
        self.ledger.start()

    def _read_done(self) -> dict[str, bytes]:
        """Return the packed results of finished tasks; report ledger lines that this version does not understand."""
        unknown = 0

        def known() -> Iterator[Line]:
            nonlocal unknown
            for line in read_ledger(self.step.directory):
                if isinstance(line, UnknownLine):
                    unknown += 1
                else:
                    yield line

        done = finished(known())
        if unknown:
            self.observer.note(f"{self.step.stage}: {skipped_note(unknown, self.step.directory)}")
        return done

    def run(self, plan: Plan) -> Manifest:
        """Run the plan until it returns its Output, then write the manifest."""
        try:
            output = self._drive(plan)
        except StorageError:
            existing = find_manifest(self.step.directory)
            if existing is None:
                raise
            raise OvertakenError(existing) from None  # another driver finished the step and removed files
        self.ledger.flush()
        stale_files.remove_dead_files(self.step.directory)  # repeated, because processes may have died since the start
        return finish_step(self.step, output, self._tally)

    def _drive(self, plan: Plan) -> Output:
        """Run the phases in order; return the plan's Output. When a phase ends, the driver drops its tasks and results;
        only those that the plan still holds stay in memory.
        """
        try:
            phase = next(plan)
            while True:
                phase = plan.send(self._run_phase(phase))
        except StopIteration as stop:
            return stop.value
        except RefusedInputsError as error:
            raise error if error.listed else write_refusals(self.step, error) from error

    def _run_phase(self, phase: Phase) -> Results:
        if len({task.key for task in phase.tasks}) != len(phase.tasks):
            raise ValueError(f"{self.step.stage}, phase {phase.name}: two tasks have the same key")
        digests = Digests(phase, self._before.hexdigest())
        reused = {task.key: packed for task in phase.tasks if (packed := self._find(phase, task, digests))}
        pending, made = [task for task in phase.tasks if task.key not in reused], {}
        if pending:
            keys, sizes = [task.key for task in phase.tasks], [task.input_bytes for task in phase.tasks]
            self.ledger.append(PhaseLine(phase.name, keys, sizes, time.time()))
            executor = self._executor()
            self._forget_failures()
            self.observer.phase_started(self.step, phase, len(reused), executor.slots)
            context = StepContext(self.step, self.ledger, self.observer)
            running = PhaseRun(phase, digests, executor, context, Results(reused.values()))
            made = running.run(pending, self._share(phase, digests))
        ordered = Results(reused.get(task.key) or made[task.key] for task in phase.tasks)
        try:
            require_allowed(phase.tolerance, ordered)
        except PartialError as error:
            write_over_limit(self.step, phase.name, ordered, str(error))
            listed = f"all of them are listed in {urls.join(self.step.directory, PARTIAL_NAME)}"
            raise PartialError(f"{self.step.stage} of {self.step.dataset}: {error}\n{listed}") from error
        self._tally.add(ordered)
        ordered.hash_into(self._before)
        return ordered

    def _forget_failures(self) -> None:
        """Remove the list of tasks that failed in an earlier run, since these tasks are about to be retried."""
        if not self._started:
            removal.remove(urls.join(self.step.directory, PARTIAL_NAME))
        self._started = True

    def _share(self, phase: Phase, digests: Digests) -> str | None:
        """Write the phase's shared data once, to a file that every node can read, and return the file's path."""
        if not phase.shared:
            return None
        path = f"{SHARED_FOLDER}/{phase.name}-{digests.of(phase.tasks[0])}.msgpack"
        atomic.commit_bytes(encode(phase.shared), urls.join(self.step.directory, path))
        return path

    def _find(self, phase: Phase, task: Task, digests: Digests) -> bytes | None:
        """Return the task's packed result from an earlier run, or None if the task must run. Every file listed in the
        result must still exist with the recorded size.
        """
        packed = self._done.get(task_id(phase.name, task.key, digests.of(task))) if self._done else None
        if packed is None or any(self._sizes.get(output.path) != output.bytes for output in unpack(packed).outputs):
            return None
        return packed
