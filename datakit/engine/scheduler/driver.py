"""Runs a step's phases in order, reuses results of earlier runs, and finishes the step.

All decisions are made above the executor interface, so they are the same on one machine and on a cluster. The driver
holds a small amount of state per task but never the data itself. For a finished step, the driver reads only the
manifest. For an unfinished step, it lists the files and reads the ledger once, and runs only the tasks that are not
done. `StepRun.advance` does the work between two phases, which may block on a disk or a store. `run_loop.py` calls it
in a thread, and meanwhile runs the attempts of all open steps.
"""

from __future__ import annotations

import time

import xxhash

from datakit.engine.ledger.ledger import Digests, LedgerWriter, PhaseLine, driver_name
from datakit.engine.ledger.packed_results import Results
from datakit.engine.observe.observer import Observer
from datakit.engine.quarantine import require_allowed
from datakit.engine.scheduler.drops import Passed
from datakit.engine.scheduler.earlier_results import EarlierResults
from datakit.engine.scheduler.finish import (
    Tally,
    clean_up_finished,
    finish_step,
    remove_exchange,
    write_open,
    write_over_limit,
    write_refusals,
)
from datakit.engine.scheduler.phase_run import OvertakenError, PhaseRun, PhaseStart, StepContext
from datakit.engine.scheduler.run_loop import ExecutorFactory, RunLoop
from datakit.engine.task import EXCHANGE_FOLDER, Output, Phase, Plan, Step, Task, encode
from datakit.errors import PartialError, RefusedInputsError, StepFailedError, StorageError, counted
from datakit.storage import atomic, removal, stale_files, urls
from datakit.storage.manifest import PARTIAL_NAME, Manifest, find_manifest

SHARED_FOLDER = f"{EXCHANGE_FOLDER}/shared"


def run_step(
    step: Step, plan: Plan, executor: ExecutorFactory, observer: Observer, driver: str | None = None
) -> Manifest:
    """Run a step until its manifest is written, and return the manifest. A finished step is not run again.

    executor: a function that returns the executor; it is called only if a task must run.
    driver: the name of this run in the ledger; by default, a new name.
    Raises InputError (the user must act), PartialError (some tasks failed; other results are kept) or StepFailedError.
    """
    existing = reuse_step(step, observer)
    if existing is not None:
        return existing
    loop = RunLoop(executor, lambda: observer)
    try:
        loop.add(open_step(step, plan, observer, driver))
        while not (ended := loop.turn()):
            pass
    except BaseException as error:
        loop.stop(error)
        raise
    (one,) = ended
    if one.error is not None:
        raise one.error
    assert one.manifest is not None
    return one.manifest


def open_step(step: Step, plan: Plan, observer: Observer, driver: str | None = None) -> StepRun:
    """Return a run of an unfinished step, for a RunLoop. driver: as in `run_step`."""
    ledger = LedgerWriter(step.directory, driver or driver_name(), step.version, step.code)
    return StepRun(step, plan, observer, ledger)


def reuse_step(step: Step, observer: Observer, manifest: Manifest | None = None) -> Manifest | None:
    """Return the manifest of a finished step, after removing what a killed driver left there. Return None for any other
    step. manifest: the step's manifest, if it has been read already; a large one should not be in memory twice.
    """
    existing = manifest or find_manifest(step.directory)
    if existing is not None:
        clean_up_finished(step)
        observer.step_ended(step, existing, True)
    return existing


class StepRun:
    """One run of one step. During a phase, `running` holds the phase; between two phases, `advance` works. Only the
    ledger and the methods `_begin`, `_share`, `_forget_failures` and `_finish` access the step's files, so a simulation
    replaces only these.
    """

    def __init__(self, step: Step, plan: Plan, observer: Observer, ledger: LedgerWriter) -> None:
        self.step: Step = step
        self.observer: Observer = observer
        self.ledger: LedgerWriter = ledger
        self.notes: list[str] = []  # messages for the user that `advance` has found
        self.stopped: bool = False  # True if the run is being stopped, so that `advance` ends
        self.running: PhaseRun | None = None
        self._plan = plan
        # The phases that must run before the plan can continue; the first is running. A start with a `Passed` writes
        # dropped files again.
        self._starts: list[tuple[PhaseStart, Passed | None]] = []
        self._earlier = EarlierResults(step, ledger)
        self._tally, self._before = Tally(), xxhash.xxh3_128()
        self._ran = False

    def advance(self, ended: PhaseRun | None = None) -> PhaseStart | Manifest:
        """Begin the step, or collect the results of the phase that has ended. Then return the next phase that has tasks
        to run. If there is none, finish the step and return its manifest. This may take long. It can be called from any
        thread, but not while attempts of the step are running. Raises the errors of `run_step`, and OvertakenError.
        """
        try:
            found = self._drive(ended)
        except StorageError:
            existing = find_manifest(self.step.directory)
            if existing is None:
                raise
            raise OvertakenError(existing) from None  # another driver finished the step and removed files
        if isinstance(found, PhaseStart):
            return found
        return self._finish(found)

    def enter(self, start: PhaseStart, slots: int) -> None:
        """Start running a phase that `advance` returned."""
        context = StepContext(self.step, self.ledger, self.observer, self._earlier.learns_of_drops)
        self.observer.phase_started(self.step, start.phase, len(start.phase.tasks) - len(start.pending), slots)
        self.running = PhaseRun(start, context)

    def _finish(self, output: Output) -> Manifest:
        self.ledger.flush()
        stale_files.remove_dead_files(self.step.directory)  # repeated, because processes may have died since the start
        return finish_step(self.step, output, self._tally)

    def overtaken(self) -> None:
        """Clean up a step that another driver has finished."""
        remove_exchange(self.step)  # our last attempts may have created it again after the other driver had removed it

    def _begin(self) -> None:
        stale_files.remove_dead_files(self.step.directory)
        self._read()
        self.ledger.start()

    def _read(self) -> None:
        note = self._earlier.read()
        if note:
            self.notes.append(note)

    def _drive(self, ended: PhaseRun | None) -> PhaseStart | Output:
        """Return the next phase that has tasks to run, or the plan's Output. When a phase ends, the driver releases its
        tasks and results; only those that the plan still holds stay in memory.
        """
        try:
            found = self._first() if ended is None else self._after(ended)
            while not isinstance(found, PhaseStart):
                found = self._look_up(self._plan.send(found))
            return found
        except StopIteration as stop:
            return stop.value
        except RefusedInputsError as error:
            raise error if error.listed else write_refusals(self.step, error) from error

    def _first(self) -> PhaseStart | Results:
        self._begin()
        return self._look_up(next(self._plan))

    def _after(self, ended: PhaseRun) -> PhaseStart | Results:
        """Return what follows the first of `_starts`, which has ended: the next of `_starts`, or the results for the
        plan.
        """
        if ended.inputs_lost:
            return self._look_again()
        made = ended.results()
        start, passed = self._starts.pop(0)
        if passed is not None:
            self._earlier.require_same_files(passed, made)
            self._earlier.drops.drop(start.phase, self._tally.exchanged)
            return self._record(self._starts[0][0])
        ordered = Results(start.reused.get(task.key) or made[task.key] for task in start.phase.tasks)
        return self._collect(start.phase, ordered, whole=True)

    def _look_again(self) -> PhaseStart | Results:
        """Look up the last of `_starts` again, because another driver has dropped files that the first was reading. It
        did so after it had finished the phase that was running, or one after it, whose results are in the ledger.
        """
        (*restored, (start, _)), self._starts = self._starts, []
        self.ledger.flush()
        self._read()
        for _, passed in restored:
            if passed is not None:
                self._earlier.pass_again(passed)
        return self._look_up(start.phase)

    def _look_up(self, phase: Phase) -> PhaseStart | Results:
        """Return the results of a phase if earlier runs have finished it, and otherwise the start of the phase. If the
        phase's tasks need files that were dropped, return the start of the first phase that must write them again.
        """
        if self.stopped:
            raise StepFailedError("the run was stopped")
        if len({task.key for task in phase.tasks}) != len(phase.tasks):
            raise ValueError(f"{self.step.stage}, phase {phase.name}: two tasks have the same key")
        digests = Digests(phase, self._before.hexdigest())
        reused, incomplete = self._earlier.reusable(phase, digests)
        pending = [task for task in phase.tasks if task.key not in reused]
        if pending:
            for passed in self._earlier.drops.take_passed():
                self._starts.append((self._start(passed.phase, passed.digests, passed.tasks, {}), passed))
            self._starts.append((self._start(phase, digests, pending, reused), None))
            return self._record(self._starts[0][0])
        self._earlier.pass_over(phase, digests, incomplete)
        return self._collect(phase, Results(reused[task.key] for task in phase.tasks), whole=not incomplete)

    def _start(self, phase: Phase, digests: Digests, pending: list[Task], reused: dict[str, bytes]) -> PhaseStart:
        return PhaseStart(phase, digests, pending, reused, self._share(phase, digests))

    def _record(self, start: PhaseStart) -> PhaseStart:
        """Record in the ledger that tasks of a phase are about to run, and return `start`."""
        tasks = start.phase.tasks
        keys, sizes = [task.key for task in tasks], [task.input_bytes for task in tasks]
        self.ledger.append(PhaseLine(start.phase.name, keys, sizes, time.time()))
        self._forget_failures()
        return start

    def _collect(self, phase: Phase, ordered: Results, *, whole: bool) -> Results:
        """Check the results of a phase against its tolerance, and add them to the step's tally. If all files of the
        phase exist (`whole`), drop the files that no later phase reads.
        """
        try:
            require_allowed(phase.tolerance, ordered)
        except PartialError as error:
            write_over_limit(self.step, phase.name, ordered, str(error))
            listed = f"all of them are listed in {urls.join(self.step.directory, PARTIAL_NAME)}"
            raise PartialError(f"{self.step.stage} of {self.step.dataset}: {error}\n{listed}") from error
        self._require_no_open_records(phase, ordered)
        self._tally.add(ordered)
        ordered.hash_into(self._before)
        if whole:
            self._earlier.drops.drop(phase, self._tally.exchanged)
        return ordered

    def _require_no_open_records(self, phase: Phase, results: Results) -> None:
        """Raise PartialError if tasks have left records for a later run."""
        left = [result for result in results if result.open]
        if not left:
            return
        write_open(self.step, phase.name, left)
        reasons = "\n".join(dict.fromkeys(result.why_open for result in left))
        records = counted(sum(result.open for result in left), "record")
        raise PartialError(
            f"{self.step.stage} of {self.step.dataset}, phase {phase.name}: {records} of "
            f"{counted(len(left), 'task')} left for a later run; what is done is kept:\n{reasons}"
        )

    def _forget_failures(self) -> None:
        """Remove the list of tasks that failed in an earlier run, because these tasks are about to be retried."""
        if not self._ran:
            removal.remove(urls.join(self.step.directory, PARTIAL_NAME))
        self._ran = True

    def _share(self, phase: Phase, digests: Digests) -> str | None:
        """Write the phase's shared data once, to a file that every node can read, and return the file's path."""
        if not phase.shared:
            return None
        path = f"{SHARED_FOLDER}/{phase.name}-{digests.of(phase.tasks[0])}.msgpack"
        atomic.commit_bytes(encode(phase.shared), urls.join(self.step.directory, path))
        return path
