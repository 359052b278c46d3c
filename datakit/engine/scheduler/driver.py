"""Goes through a step's phases in order, reuses results of earlier runs, and finishes the step.

All decisions are made above the executor interface, so they are the same on one machine and on a cluster. The driver
holds a small amount of state per task but never the data itself. For a finished step, the driver reads only the
manifest. For an unfinished step, it lists the files and reads the ledger once, and runs only the tasks that are not
done. `StepRun.advance` does the work between two phases, which may wait for a disk or a store; `run_loop.py` calls it
in a thread, and runs the attempts of all open steps meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import xxhash

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
from datakit.engine.scheduler.phase_run import OvertakenError, PhaseRun, PhaseStart, StepContext
from datakit.engine.scheduler.run_loop import ExecutorFactory, RunLoop
from datakit.engine.task import Output, Phase, Plan, Step, Task, encode
from datakit.errors import PartialError, RefusedInputsError, StepFailedError, StorageError
from datakit.storage import atomic, removal, stale_files, urls
from datakit.storage.manifest import PARTIAL_NAME, Manifest, find_manifest

SHARED_FOLDER = "exchange/shared"


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
    return StepRun(step, plan, observer, driver)


def reuse_step(step: Step, observer: Observer) -> Manifest | None:
    """Return the manifest of a finished step, and remove what a killed driver left there; None for any other step."""
    existing = find_manifest(step.directory)
    if existing is not None:
        clean_up_finished(step)
        observer.step_ended(step, existing, True)
    return existing


class StepRun:
    """One run of one step: between two phases in `advance`, during a phase in `running`. Only the ledger and the
    methods `_begin`, `_share`, `_forget_failures` and `_finish` touch the step's files, so a simulation replaces only
    these.
    """

    def __init__(self, step: Step, plan: Plan, observer: Observer, driver: str | None = None) -> None:
        """`driver`: the name of this run in the ledger; by default, a new name."""
        self.step: Step = step
        self.observer: Observer = observer
        self.ledger: LedgerWriter = LedgerWriter(step.directory, driver or driver_name(), step.version, step.code)
        self.notes: list[str] = []  # messages for the user that `advance` has found
        self.stopped: bool = False  # True once the run is being stopped: `advance` must not go on
        self.running: PhaseRun | None = None
        self._plan = plan
        self._start: PhaseStart | None = None  # the phase that is running
        self._done, self._sizes = dict[str, bytes](), dict[str, int]()
        self._tally, self._before = Tally(), xxhash.xxh3_128()
        self._ran = False

    def advance(self, ended: PhaseRun | None = None) -> PhaseStart | Manifest:
        """Begin the step, or collect the results of the phase that has ended; then go on to the next phase of which
        tasks must run. If there is none, finish the step and return its manifest. May take long. Call it from any
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
            self._start = found
            return found
        return self._finish(found)

    def enter(self, start: PhaseStart, slots: int) -> None:
        """Begin to run the tasks of a phase that `advance` returned."""
        context = StepContext(self.step, self.ledger, self.observer)
        self.observer.phase_started(self.step, start.phase, len(start.reused), slots)
        self.running = PhaseRun(start, context)

    def _finish(self, output: Output) -> Manifest:
        self.ledger.flush()
        stale_files.remove_dead_files(self.step.directory)  # repeated, because processes may have died since the start
        return finish_step(self.step, output, self._tally)

    def overtaken(self) -> None:
        """Clean up a step that another driver has finished."""
        remove_exchange(self.step)  # our last attempts may have written files there since the other driver removed it

    def _begin(self) -> None:
        stale_files.remove_dead_files(self.step.directory)
        self._done = self._read_done()
        self._sizes = {info.path: info.size for info in urls.listing(self.step.directory)} if self._done else {}
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
            self.notes.append(f"{self.step.stage}: {skipped_note(unknown, self.step.directory)}")
        return done

    def _drive(self, ended: PhaseRun | None) -> PhaseStart | Output:
        """Go on to the next phase of which tasks must run, or to the plan's Output. When a phase ends, the driver drops
        its tasks and results; only those that the plan still holds stay in memory.
        """
        try:
            if ended is None:
                self._begin()
                phase = next(self._plan)
            else:
                phase = self._plan.send(self._end_phase(ended.results()))
            while not isinstance(found := self._look_up(phase), PhaseStart):
                phase = self._plan.send(self._collect(phase, found))
            return found
        except StopIteration as stop:
            return stop.value
        except RefusedInputsError as error:
            raise error if error.listed else write_refusals(self.step, error) from error

    def _look_up(self, phase: Phase) -> PhaseStart | Results:
        """Return the results of a phase that earlier runs have finished, or the start of any other phase."""
        if self.stopped:
            raise StepFailedError("the run was stopped")
        if len({task.key for task in phase.tasks}) != len(phase.tasks):
            raise ValueError(f"{self.step.stage}, phase {phase.name}: two tasks have the same key")
        digests = Digests(phase, self._before.hexdigest())
        reused = {task.key: packed for task in phase.tasks if (packed := self._find(phase, task, digests))}
        pending = [task for task in phase.tasks if task.key not in reused]
        if not pending:
            return Results(reused[task.key] for task in phase.tasks)
        keys, sizes = [task.key for task in phase.tasks], [task.input_bytes for task in phase.tasks]
        self.ledger.append(PhaseLine(phase.name, keys, sizes, time.time()))
        self._forget_failures()
        return PhaseStart(phase, digests, pending, reused, self._share(phase, digests))

    def _end_phase(self, made: dict[str, bytes]) -> Results:
        start, self._start = self._start, None
        assert start is not None
        ordered = Results(start.reused.get(task.key) or made[task.key] for task in start.phase.tasks)
        return self._collect(start.phase, ordered)

    def _collect(self, phase: Phase, ordered: Results) -> Results:
        """Check the results of a phase against its tolerance, and add them to the step's tally."""
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

    def _find(self, phase: Phase, task: Task, digests: Digests) -> bytes | None:
        """Return the task's packed result from an earlier run, or None if the task must run. Every file listed in the
        result must still exist with the recorded size.
        """
        packed = self._done.get(task_id(phase.name, task.key, digests.of(task))) if self._done else None
        if packed is None or any(self._sizes.get(output.path) != output.bytes for output in unpack(packed).outputs):
            return None
        return packed
