"""Runs one phase: provides attempts, processes their outcomes, retries tasks or bisects their inputs, and reports
failures.

A phase run never waits and does not know the executor: `run_loop.py` asks it for attempts when slots are free, and
passes the outcomes to it. Attempts are created only when they are asked for, so a phase of 100,000 tasks takes little
memory: one pointer in the queue per new task, and one packed result per finished task. `attempt_queue.py` decides the
order, and `retry_policy.py` judges the outcomes. A task killed by a record that cannot be skipped yet is parked until
all other tasks are done. A task that refuses an input is not retried; its message is reported at the end of the phase,
together with those of all other tasks that refused an input.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from datakit.engine.executor import Attempt, Cause, Outcome, Verdict
from datakit.engine.ledger.ledger import Digests, LedgerWriter, attempt_line
from datakit.engine.ledger.packed_results import Results, pack
from datakit.engine.observe.observer import Observer
from datakit.engine.quarantine import Allowance
from datakit.engine.scheduler import retry_policy
from datakit.engine.scheduler.attempt_queue import AttemptQueue
from datakit.engine.scheduler.bisect_input import InputBisection
from datakit.engine.scheduler.boot_deaths import BootDeaths
from datakit.engine.scheduler.finish import write_partial
from datakit.engine.scheduler.outcomes import (
    describe_failure,
    is_about_inputs,
    is_of_storage,
    refusal_class,
    single_outcomes,
)
from datakit.engine.scheduler.retry_policy import DEATHS, Breaker, TaskHistory
from datakit.engine.scheduler.task_estimates import TaskEstimates
from datakit.engine.task import Phase, Step, Task
from datakit.errors import (
    NoSpaceError,
    PartialError,
    RefusedError,
    RefusedInputsError,
    StepFailedError,
    counted,
)
from datakit.storage import urls
from datakit.storage.manifest import PARTIAL_NAME, Manifest, find_manifest

SHOWN = 20  # maximum number of failed tasks listed in a message
MOST_REFUSALS = 100  # if this many tasks refuse their inputs and none has succeeded, the others are not tried


class OvertakenError(Exception):
    """Another driver has finished the step and may have removed files that our attempts were reading."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__("another driver has finished the step")
        self.manifest = manifest


@dataclass(frozen=True)
class StepContext:
    """The step that a phase belongs to, with the ledger and the observer that record the phase's attempts.

    inputs_dropped: a function that returns True if another driver has dropped files that the phase may be reading.
    """

    step: Step
    ledger: LedgerWriter
    observer: Observer
    inputs_dropped: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class PhaseStart:
    """A phase that has tasks to run. reused: the packed results of its other tasks, by task key. shared: the path of
    the phase's shared data in the step's directory.
    """

    phase: Phase
    digests: Digests
    pending: list[Task]
    reused: dict[str, bytes]
    shared: str | None


class State(Enum):
    """The state of a task that has been started but is not done."""

    RUNNING = auto()  # an attempt is running, or is submitted and waiting for a slot
    QUEUED = auto()  # a retry is in the queue
    PARKED = auto()  # the task waits until it is known whether the record that killed it may be skipped
    FAILED = auto()


@dataclass(slots=True)
class TaskState:
    """A task's state from its first attempt until it is done. attempt: the task's latest attempt."""

    attempt: Attempt
    state: State = State.RUNNING
    history: TaskHistory = field(default_factory=TaskHistory)
    bisection: InputBisection | None = None

    @property
    def place(self) -> tuple[str, int]:
        """The file and the position of the record that most recently killed the task."""
        assert self.history.proposed is not None
        return self.history.proposed.file, self.history.proposed.position


class PhaseRun:
    """One run of one phase. in_flight: the number of attempts that were returned and have no outcome yet. inputs_lost:
    True if another driver has dropped files that our attempts were reading; the phase is then done, without results.
    """

    def __init__(self, start: PhaseStart, context: StepContext) -> None:
        self.phase: Phase = start.phase
        self.in_flight: int = 0
        self.inputs_lost: bool = False
        self._digests, self._shared, self._pending = start.digests, start.shared, len(start.pending)
        self._step, self._ledger, self._observer = context.step, context.ledger, context.observer
        self._inputs_dropped = context.inputs_dropped
        self._queue = AttemptQueue(start.pending)
        self._tasks: dict[str, TaskState] = {}  # tasks that have been started but are not done
        self._results: dict[str, bytes] = {}  # packed results
        self._estimates, self._breaker, self._refusals = TaskEstimates(start.phase), Breaker(), 0
        self._allowance = Allowance(start.phase.tolerance, Results(start.reused.values()))
        self._boot_deaths = BootDeaths()

    @property
    def waiting(self) -> int:
        """The number of tasks and retries in the queue."""
        return len(self._queue)

    def done(self) -> bool:
        """Return True if every task is done or has failed. The last parked tasks are retried or fail here."""
        return self.inputs_lost or (not self._queue and not self.in_flight and not self._settle())

    def results(self) -> dict[str, bytes]:
        """Return the packed results of a phase that is done, keyed by task key. If some tasks failed, raise
        PartialError, or StepFailedError if no task succeeded and no bad record was identified.
        """
        if self._tasks:
            self._give_up()
        return self._results

    # --- attempts

    def next_attempt(self, slots: int) -> Attempt | None:
        """Return the next attempt to start, or None if none is ready. slots: the number of slots of the executor."""
        item = None if self.inputs_lost else self._queue.take(time.monotonic())
        if item is None:
            return None
        attempt = self._first_attempt(item, slots) if isinstance(item, Task) else item
        task = self._tasks.setdefault(attempt.task.key, TaskState(attempt))
        task.attempt, task.state = attempt, State.RUNNING
        self.in_flight += 1
        return attempt

    def ready_in(self) -> float | None:
        """Return the number of seconds until the next attempt is ready, or None if the queue is empty."""
        return self._queue.ready_in(time.monotonic()) if self._queue else None

    def _first_attempt(self, task: Task, slots: int) -> Attempt:
        """Create the first attempt at a task; if tasks are tiny, the attempt also includes other new tasks."""
        more = self._queue.take_new(self._estimates.batch(len(self._queue), slots) - 1)
        memory = max(self._estimates.first(one) for one in (task, *more))
        return self._attempt(task, memory, more)

    def _attempt(self, task: Task, memory: int, more: tuple[Task, ...] = ()) -> Attempt:
        phase = self.phase
        return Attempt(
            task=task,
            phase=phase.name,
            step_directory=self._step.directory,
            number=1,
            cpus=phase.cpus,
            memory_bytes=memory,
            preloads=phase.preloads,
            shared=self._shared,
            hang_seconds=phase.hang_seconds,
            more=more,
            tolerance=phase.tolerance,
            stage=self._step.stage,
            limits=self._step.limits,
        )

    def _retry(self, task: TaskState) -> None:
        """Queue the next attempt at a task or, during a bisection, at the half of its input to be tried next."""
        attempt = retry_policy.next_attempt(task.attempt, task.history, self._estimates.declared(task.attempt.task))
        if task.bisection is not None:
            attempt = replace(attempt, task=task.bisection.next_task())
        wait = retry_policy.backoff_seconds(task.history)
        self._put_back(attempt, time.monotonic() + wait if wait else 0.0)

    def _put_back(self, attempt: Attempt, ready: float = 0.0) -> None:
        self._tasks.setdefault(attempt.task.key, TaskState(attempt)).state = State.QUEUED
        self._queue.put_back(attempt, ready)

    # --- outcomes

    def take(self, outcome: Outcome) -> None:
        """Process an outcome, and queue the next attempt if one is needed. Raises OvertakenError if another driver has
        finished the step, and NoSpaceError, InputError or StepFailedError if the step cannot continue.
        """
        outcome = self._boot_deaths.judge(outcome)
        self.in_flight -= 1
        task = self._tasks[outcome.key]
        if outcome.cause is not Cause.DONE:
            existing = find_manifest(self._step.directory)
            if existing is not None:
                raise OvertakenError(existing)
            self.inputs_lost = self.inputs_lost or (is_of_storage(outcome) and self._inputs_dropped())
        if self.inputs_lost:
            return
        if not task.attempt.more or (outcome.cause is Cause.REFUSED and not is_about_inputs(outcome)):
            self._enter(task, outcome)
        elif outcome.cause is Cause.DONE:
            for one, single in zip((task.attempt.task, *task.attempt.more), single_outcomes(outcome), strict=True):
                self._ledger.append(attempt_line(single, self._digests.of(one)))
                self._finish(one, single)
        else:
            self._break_up(task.attempt, outcome)

    def _break_up(self, batch: Attempt, outcome: Outcome) -> None:
        """Queue each task of a failed batch separately. It is unknown which task failed, so none is blamed."""
        self._observer.attempt_ended(outcome, Verdict.RETRY)
        for task in (batch.task, *batch.more):
            attempt = self._attempt(task, self._estimates.declared(task))
            self._put_back(replace(attempt, own_child=True))

    def _enter(self, task: TaskState, outcome: Outcome) -> None:
        digest = self._digests.of(task.attempt.task)
        if task.bisection is not None:
            # The outcome covers only a part of the task's input, so its result must not be recorded for the whole task.
            self._ledger.append(attempt_line(replace(outcome, result=None), digest))
            self._bisect(task, task.bisection, outcome)
            return
        self._ledger.append(attempt_line(outcome, digest))
        verdict = retry_policy.judge(task.history, outcome)
        if verdict is Verdict.DONE:
            self._finish(task.attempt.task, outcome)
        elif verdict is Verdict.REFUSE:
            self._refuse(task, outcome)
        elif verdict is Verdict.RETRY:
            self._observer.attempt_ended(outcome, verdict)
            self._retry(task)
        elif verdict is Verdict.PROPOSE:
            self._propose(task, outcome)
        elif outcome.cause in DEATHS and outcome.in_progress is None and InputBisection.possible(task.attempt.task):
            self._observer.attempt_ended(outcome, Verdict.RETRY)
            task.bisection = InputBisection.of(task.attempt.task)
            self._retry(task)
        else:
            self._fail(task, outcome)

    def _finish(self, task: Task, outcome: Outcome) -> None:
        assert outcome.result is not None
        # Use task.key: outcome.key is an equal but separate string, which would take additional memory.
        self._results[task.key] = pack(outcome.result)
        self._tasks.pop(task.key, None)
        self._allowance.task_done(task.key, outcome.result)
        self._estimates.learn(task, outcome)
        self._breaker.count(Verdict.DONE, outcome)
        self._observer.attempt_ended(outcome, Verdict.DONE)

    def _refuse(self, task: TaskState, outcome: Outcome) -> None:
        """If an input was refused, let the other tasks go on, so that all such inputs are found; otherwise, stop the
        phase.
        """
        self._observer.attempt_ended(outcome, Verdict.REFUSE)
        if not is_about_inputs(outcome):
            raise refusal_class(outcome)(outcome.message)
        task.state, task.history.last = State.FAILED, outcome
        self._refusals += 1
        if self._refusals >= MOST_REFUSALS and not self._breaker.done:
            self._raise_refusals()

    def _raise_refusals(self) -> None:
        """If inputs were refused, raise an error that names them; if there are several, first write `partial.json`."""
        failed = {key: task.history for key, task in sorted(self._tasks.items()) if task.history.last is not None}
        refused = [last for one in failed.values() if (last := one.last) and last.cause is Cause.REFUSED]
        messages = list(dict.fromkeys(line for outcome in refused for line in outcome.message.splitlines()))
        if len(messages) == 1:
            kind = refusal_class(refused[0])
            raise (RefusedError if kind is RefusedInputsError else kind)(messages[0])
        if messages:
            write_partial(self._step, self.phase.name, failed)
            raise RefusedInputsError(messages, urls.join(self._step.directory, PARTIAL_NAME))

    def _propose(self, task: TaskState, outcome: Outcome) -> None:
        """If the record that killed the task may be skipped now, retry the task without it; else park the task."""
        assert task.history.proposed is not None
        if self._allowance.grants(outcome.key, task.history.proposed):
            retry_policy.skip_proposed(task.history)
            self._observer.attempt_ended(outcome, Verdict.RETRY)
            self._retry(task)
            return
        task.state = State.PARKED
        self._observer.attempt_ended(outcome, Verdict.PROPOSE)
        self._stop_if_all_alike(outcome)

    def _settle(self) -> bool:
        """Retry or fail the parked tasks once all others are done; return True if any of them is retried. The
        parked tasks are handled in the order of the records that killed them.
        """
        parked = [task for task in self._tasks.values() if task.state is State.PARKED]
        for task in sorted(parked, key=lambda task: task.place):
            history = task.history
            assert history.proposed is not None and history.last is not None
            if self._allowance.grants(task.attempt.task.key, history.proposed, len(parked)):
                retry_policy.skip_proposed(history)
                self._retry(task)
            else:
                task.state = State.FAILED
                self._observer.attempt_ended(history.last, Verdict.FAIL)
        return bool(self._queue)

    def _bisect(self, task: TaskState, bisection: InputBisection, outcome: Outcome) -> None:
        """Use the outcome of one half to narrow the search, and fail the task once a single entry is left."""
        history = task.history
        history.attempts += 1
        if outcome.cause in DEATHS or outcome.cause is Cause.DONE:
            bisection.narrow(outcome.cause in DEATHS)
        elif outcome.cause is Cause.REFUSED:
            self._refuse(task, outcome)
            return
        elif not retry_policy.may_repeat(history, outcome):
            history.last = outcome
            self._fail(task, outcome)
            return
        if bisection.found is None:
            self._observer.attempt_ended(outcome, Verdict.RETRY)
            self._retry(task)
            return
        assert history.last is not None
        history.last = replace(history.last, message=f"{history.last.message}; the cause is in {bisection.found}")
        self._fail(task, history.last)

    def _fail(self, task: TaskState, outcome: Outcome) -> None:
        task.state = State.FAILED
        self._observer.attempt_ended(outcome, Verdict.FAIL)
        if outcome.error_type == NoSpaceError.__name__:  # every other task of the run would fail as well
            raise NoSpaceError(f"{self._step.stage} of {self._step.dataset}: {outcome.message}")
        self._stop_if_all_alike(outcome)

    def _stop_if_all_alike(self, outcome: Outcome) -> None:
        if self._breaker.count(Verdict.FAIL, outcome):
            raise StepFailedError(
                f"{self._step.stage} of {self._step.dataset}: the first {self._breaker.failed} tasks of phase "
                f"{self.phase.name} all failed with the same error, so the others were not tried: {outcome.message}"
            )

    def _give_up(self) -> None:
        """Write the list of failed tasks and raise an error. All other tasks are done by now."""
        self._raise_refusals()
        failed = {key: task.history for key, task in sorted(self._tasks.items())}
        write_partial(self._step, self.phase.name, failed)
        phase = f"{self._step.stage} of {self._step.dataset}, phase {self.phase.name}"
        lines = [
            f"  {key}: {describe_failure(history, self.phase.tolerance.key)}"
            for key, history in list(failed.items())[:SHOWN]
        ]
        text = f"{phase}: {len(failed)} of {counted(self._pending, 'task')} failed\n" + "\n".join(lines)
        known = any(history.proposed or history.causes[Cause.QUARANTINE] for history in failed.values())
        if not self._results and not known:
            raise StepFailedError(text)
        advice = (
            f"the results of the others are kept; `datakit status {self._step.directory}` lists all tasks; the next "
            "run retries the failed ones"
        )
        raise PartialError(f"{text}\n{advice}")
