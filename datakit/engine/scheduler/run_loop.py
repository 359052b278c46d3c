"""Runs several steps at the same time over one executor: fills free slots by priority, and gives each outcome to its
step.

One loop owns the executor, the observers and the ledgers of running phases, so none of them needs a lock. Each step is
either *running* a phase (`phase_run.py` provides attempts and processes outcomes) or *advancing* to its next phase in a
thread (`StepRun.advance` reads ledgers, plans tasks and writes manifests). A free slot gets the next attempt of the
most urgent step that has one ready.

The executor holds at most WINDOW attempts per slot. All others stay in the queues of their steps. So if an urgent step
becomes ready late, at most WINDOW - 1 less urgent attempts per slot start before its attempts.

If a step fails, its attempts are cancelled, and the other steps continue. Only errors that concern every step end the
loop: a full disk, a lost cluster, a signal, a bug in datakit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Protocol

from datakit.engine.executor import Executor, Outcome
from datakit.engine.ledger.ledger import LedgerWriter
from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler.background import Background, Finished, Work
from datakit.engine.scheduler.phase_run import OvertakenError, PhaseRun, PhaseStart
from datakit.engine.task import Step
from datakit.errors import DatakitError, NoSpaceError, RootError
from datakit.storage.manifest import Manifest

# The maximum number of attempts per slot, running or waiting in the executor. With 1, a slot would wait for the loop
# between two attempts; with more than 2, urgent attempts would wait longer.
WINDOW = 2
WAIT_SECONDS = 0.5
POLL_SECONDS = 0.02  # how often the loop looks for steps that have advanced while attempts run
STOP_SECONDS = 10.0  # how long a stopped run waits for threads that write to the root
MOST_STEPS = 128  # open at a time; each holds a file descriptor for its ledger, and its tasks in memory
READY_PER_SLOT = 2 * WINDOW  # no step is opened while more urgent open steps have this many tasks per slot

ExecutorFactory = Callable[[], Executor]
Priority = tuple[float, ...]  # lower values first


class OpenStep(Protocol):
    """An open step; `StepRun` in `driver.py` explains the methods."""

    step: Step
    observer: Observer
    ledger: LedgerWriter
    notes: list[str]
    stopped: bool
    running: PhaseRun | None

    def advance(self, ended: PhaseRun | None = None) -> PhaseStart | Manifest: ...

    def enter(self, start: PhaseStart, slots: int) -> None: ...

    def overtaken(self) -> None: ...


@dataclass(frozen=True)
class Ended:
    """The end of a step: its manifest, or the error that ended it."""

    step: Step
    manifest: Manifest | None = None
    error: DatakitError | None = None


class RunLoop:
    """Runs the open steps. After an error, call `stop`."""

    def __init__(
        self,
        executor: ExecutorFactory,
        observer: Callable[[], Observer],
        background: Work[PhaseStart | Manifest] | None = None,
    ) -> None:
        """executor: called when the first task must run. observer: called for each event that concerns no single step.
        background: runs `OpenStep.advance`, by default in threads.
        """
        self._executor_of, self._observer_of = executor, observer
        self._executor: Executor | None = None
        self._open: dict[str, OpenStep] = {}  # by directory, in order of priority
        self._priorities: dict[str, Priority] = {}
        self._background: Work[PhaseStart | Manifest] = background or Background[PhaseStart | Manifest]()
        self._compiling = False

    def __len__(self) -> int:
        """Return the number of open steps."""
        return len(self._open)

    def add(self, step: OpenStep, priority: Priority = ()) -> None:
        """Open a step. If several steps have attempts ready, the one with the lowest priority value comes first."""
        directory = step.step.directory
        self._priorities[directory] = priority
        self._open = dict(sorted([*self._open.items(), (directory, step)], key=lambda item: self._priorities[item[0]]))
        step.observer.step_started(step.step)
        self._background.start(directory, step.advance)

    def has_room(self, priority: Priority) -> bool:
        """Return True if a step of this priority would soon get slots and should therefore be opened now."""
        if len(self._open) >= MOST_STEPS:
            return False
        before = [step.running for name, step in self._open.items() if self._priorities[name] <= priority]
        ready = sum(1 if phase is None else phase.waiting + phase.in_flight for phase in before)
        return ready < READY_PER_SLOT * (self._executor.slots if self._executor is not None else 1)

    def turn(self) -> list[Ended]:
        """Submit attempts while there is room, wait for outcomes or advanced steps (for at most half a second), and
        process them. Return the steps that have ended. Raises every error that concerns more than one step.
        """
        if self._executor is not None:
            self._fill(self._executor)
        ended = self._route_all(self._outcomes())
        wait = 0.0 if ended or any(step.running for step in self._open.values()) else WAIT_SECONDS
        ended += [end for one in self._background.take(wait) if (end := self._continue(one)) is not None]
        for step in [step for step in self._open.values() if step.running is not None and step.running.done()]:
            self._advance(step)
        self._tick()
        return ended

    def stop(self, error: BaseException) -> None:
        """End all open steps because of an error. Finished tasks stay in the ledgers. What fails meanwhile, because of
        a full disk or a lost cluster, is added to the error as a note, as it may hide neither the error nor its exit
        code.
        """
        for step in self._open.values():
            step.stopped = True
        if self._executor is not None:
            with _noted_in(error):
                self._executor.cancel(*self._open)
        running = self._background.stop(STOP_SECONDS)
        manifests = {one.key: one.result for one in self._background.take(0) if isinstance(one.result, Manifest)}
        with ExitStack() as cleanup:  # closes all ledgers, whatever fails
            for directory, step in self._open.items():
                cleanup.callback(self._report_end, step, manifests.get(directory), error)
                if directory not in running:  # otherwise, its thread still uses the ledger
                    cleanup.callback(self._close_ledger, step, error)
        self._open.clear()

    def _report_end(self, step: OpenStep, manifest: Manifest | None, error: BaseException) -> None:
        with _noted_in(error):
            if manifest is None:
                step.observer.step_failed(step.step, error)
            else:
                step.observer.step_ended(step.step, manifest, False)

    def _close_ledger(self, step: OpenStep, error: BaseException) -> None:
        with _noted_in(error):
            step.ledger.close()

    # --- attempts

    def _fill(self, executor: Executor) -> None:
        slots = executor.slots
        free = WINDOW * slots - self._in_flight()
        for step in self._open.values():
            while free > 0 and step.running is not None and (attempt := step.running.next_attempt(slots)) is not None:
                executor.submit(attempt)
                free -= 1

    def _in_flight(self) -> int:
        return sum(step.running.in_flight for step in self._open.values() if step.running is not None)

    def _outcomes(self) -> list[Outcome]:
        """Wait for outcomes, at most until the next retry is due or the threads must be polled."""
        if self._executor is None:
            return []
        running = [step.running for step in self._open.values() if step.running is not None]
        due = [seconds for phase in running if (seconds := phase.ready_in()) is not None]
        wait = POLL_SECONDS if self._background.busy else WAIT_SECONDS
        if self._in_flight():  # attempts that are already due wait for room in the window
            return self._executor.wait(min([wait, *filter(None, due)]))
        if running and not any(phase.done() for phase in running):
            time.sleep(min([wait, *due]))  # only delayed retries are left
        return []

    def _route_all(self, outcomes: Sequence[Outcome]) -> list[Ended]:
        """Pass outcomes to their steps; return the steps that have ended. If one of them stops the run, the results of
        the others are recorded first.
        """
        ended, stopping = list[Ended](), list[DatakitError]()
        for outcome in outcomes:
            try:
                end = self._route(outcome)
            except DatakitError as error:
                stopping.append(error)
            else:
                ended += [end] if end is not None else []
        if stopping:
            raise stopping[0]
        return ended

    def _route(self, outcome: Outcome) -> Ended | None:
        step = self._open.get(outcome.step_directory)
        if step is None or step.running is None:
            return None  # an earlier outcome has ended the step
        try:
            step.running.take(outcome)
        except (OvertakenError, DatakitError) as error:
            return self._end(step, error)
        return None

    # --- steps

    def _advance(self, step: OpenStep) -> None:
        """Advance a step whose phase is done. `advance` gets the phase and reads its results."""
        phase, step.running = step.running, None
        assert phase is not None and self._executor is not None
        if phase.inputs_lost:
            self._executor.cancel(step.step.directory)  # its other attempts would not find the dropped files either
        self._background.start(step.step.directory, lambda: step.advance(phase))

    def _continue(self, one: Finished[PhaseStart | Manifest]) -> Ended | None:
        step = self._open[one.key]
        while step.notes:
            step.observer.note(step.notes.pop(0))
        if one.error is not None:
            return self._end(step, one.error)
        if isinstance(one.result, PhaseStart):
            self._executor = self._executor or self._executor_of()
            step.enter(one.result, self._executor.slots)
            return None
        assert one.result is not None
        return self._close(step, one.result)

    def _end(self, step: OpenStep, error: BaseException) -> Ended | None:
        """End a step because of an error. Raise the error if it concerns all steps."""
        if not isinstance(error, (DatakitError, OvertakenError)) or isinstance(error, (NoSpaceError, RootError)):
            raise error
        if self._executor is not None:
            self._executor.cancel(step.step.directory)
        if isinstance(error, OvertakenError):
            step.overtaken()
            return self._close(step, error.manifest)
        self._remove(step)
        with closing(step.ledger):  # even if the failure cannot be reported
            step.observer.step_failed(step.step, error)
        return Ended(step.step, error=error)

    def _close(self, step: OpenStep, manifest: Manifest) -> Ended:
        self._remove(step)
        step.ledger.close()
        step.observer.step_ended(step.step, manifest, False)
        return Ended(step.step, manifest)

    def _remove(self, step: OpenStep) -> None:
        del self._open[step.step.directory], self._priorities[step.step.directory]

    def _tick(self) -> None:
        if self._executor is None:
            return
        for step in self._open.values():
            if step.running is not None:
                step.ledger.tick()
                step.observer.disk_written(step.step, self._executor.written(step.step.directory))
        observer = self._observer_of()
        if self._executor.compiling != self._compiling:
            self._compiling = not self._compiling
            observer.kernels_compiling(self._compiling)
        observer.tick()


@contextmanager
def _noted_in(error: BaseException) -> Iterator[None]:
    """Add a failure of the disk, the store or the cluster to the error that has stopped the run."""
    try:
        yield
    except (DatakitError, OSError) as failure:
        error.add_note(f"while the run was being stopped: {failure}")
