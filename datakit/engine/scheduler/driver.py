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
    DroppedLine,
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
from datakit.engine.scheduler.drops import Drops, InputsDroppedError, Passed
from datakit.engine.scheduler.finish import (
    Tally,
    clean_up_finished,
    finish_step,
    remove_exchange,
    write_over_limit,
    write_refusals,
)
from datakit.engine.scheduler.phase_run import OvertakenError, PhaseRun, StepContext
from datakit.engine.task import EXCHANGE_FOLDER, Output, OutputFile, Phase, Plan, Step, Task, encode
from datakit.errors import DivergentOutputError, PartialError, RefusedInputsError, StorageError
from datakit.storage import atomic, removal, stale_files, urls
from datakit.storage.manifest import PARTIAL_NAME, Manifest, find_manifest

SHARED_FOLDER = f"{EXCHANGE_FOLDER}/shared"

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
        self._drops = Drops(step, ledger)
        self._read()
        self._tally, self._before = Tally(), xxhash.xxh3_128()
        self._started = False
        self.ledger.start()

    def _read(self) -> None:
        """Read the results of finished tasks, packed, and the files that exist; report ledger lines that this version
        does not understand.
        """
        unknown, dropped = 0, list[DroppedLine]()

        def known() -> Iterator[Line]:
            nonlocal unknown
            for line in read_ledger(self.step.directory):
                if isinstance(line, UnknownLine):
                    unknown += 1
                    continue
                if isinstance(line, DroppedLine):
                    dropped.append(line)
                yield line

        self._done = finished(known())
        self._drops.learn(dropped)
        self._sizes = {info.path: info.size for info in urls.listing(self.step.directory)} if self._done else {}
        if unknown:
            self.observer.note(f"{self.step.stage}: {skipped_note(unknown, self.step.directory)}")

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
        while True:
            try:
                ordered, whole = self._results_of(phase, digests)
                break
            except InputsDroppedError:
                self._read()  # the other driver has finished this phase, so its results are in the ledger
        try:
            require_allowed(phase.tolerance, ordered)
        except PartialError as error:
            write_over_limit(self.step, phase.name, ordered, str(error))
            listed = f"all of them are listed in {urls.join(self.step.directory, PARTIAL_NAME)}"
            raise PartialError(f"{self.step.stage} of {self.step.dataset}: {error}\n{listed}") from error
        self._tally.add(ordered)
        ordered.hash_into(self._before)
        if whole:
            self._drops.drop(phase, self._tally.exchanged)
        return ordered

    def _results_of(self, phase: Phase, digests: Digests) -> tuple[Results, bool]:
        """Return the results of all tasks of a phase, and whether all of its files exist. Runs the tasks that have no
        result that can be reused.
        """
        reused, incomplete = self._reusable(phase, digests)
        pending, made = [task for task in phase.tasks if task.key not in reused], {}
        if pending:
            for passed in self._drops.take_passed():
                self._restore(passed)
            made = self._execute(phase, digests, pending, Results(reused.values()))
        elif incomplete:
            files = (output for task in incomplete for output in unpack(reused[task.key]).outputs)
            dropped_by = {by for file in files if not self._exists(file) and (by := self._drops.by(file))}
            self._drops.passes(Passed(phase, digests, incomplete, dropped_by))
        else:
            self._drops.reached(phase.name)
        return Results(reused.get(task.key) or made[task.key] for task in phase.tasks), not incomplete

    def _reusable(self, phase: Phase, digests: Digests) -> tuple[dict[str, bytes], list[Task]]:
        """Return the packed results that can be reused, and those of their tasks whose files were dropped. If some
        tasks must run, so must those whose files were dropped.
        """
        found: dict[str, bytes] = {}
        incomplete: list[Task] = []
        for task in phase.tasks:
            packed = self._done.get(task_id(phase.name, task.key, digests.of(task))) if self._done else None
            missing = [output for output in unpack(packed).outputs if not self._exists(output)] if packed else []
            if packed and all(self._drops.by(output) for output in missing):
                found[task.key] = packed
                incomplete += [task] if missing else []
        if len(found) == len(phase.tasks):
            return found, incomplete
        for task in incomplete:
            del found[task.key]
        return found, []

    def _exists(self, output: OutputFile) -> bool:
        return self._sizes.get(output.path) == output.bytes

    def _restore(self, passed: Passed) -> None:
        """Run again the tasks whose files were dropped, and make sure that the files are the same as before."""
        made = self._execute(passed.phase, passed.digests, passed.tasks, Results(()))
        for task in passed.tasks:
            before = self._done[task_id(passed.phase.name, task.key, passed.digests.of(task))]
            if unpack(made[task.key]).outputs != unpack(before).outputs:
                raise DivergentOutputError(
                    f"{self.step.stage} of {self.step.dataset}, phase {passed.phase.name}: task {task.key} has written "
                    f"other files than in an earlier run; remove {self.step.directory} and run again"
                )

    def _execute(self, phase: Phase, digests: Digests, pending: list[Task], reused: Results) -> dict[str, bytes]:
        """Run tasks of a phase, and return their packed results by key. reused: the results of its other tasks."""
        keys, sizes = [task.key for task in phase.tasks], [task.input_bytes for task in phase.tasks]
        self.ledger.append(PhaseLine(phase.name, keys, sizes, time.time()))
        executor = self._executor()
        self._forget_failures()
        self.observer.phase_started(self.step, phase, len(phase.tasks) - len(pending), executor.slots)
        context = StepContext(self.step, self.ledger, self.observer, self._learns_of_drops)
        return PhaseRun(phase, digests, executor, context, reused).run(pending, self._share(phase, digests))

    def _learns_of_drops(self) -> bool:
        """Return True if another driver has dropped files since the ledger was last read."""
        return self._drops.learn(line for line in read_ledger(self.step.directory) if isinstance(line, DroppedLine))

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
