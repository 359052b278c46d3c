"""The pending tasks of one phase: submitted in order of size, judged, tried again, and what fails told by name.

Attempts are made when a slot asks for them, so a phase of 100,000 tasks is small. In which order they go,
`attempt_queue.py` says. Records that may not be dropped yet wait until all others are done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from datakit import errors
from datakit.engine.executor import Attempt, Cause, Executor, Outcome, Verdict
from datakit.engine.ledger.ledger import Digests, LedgerWriter, attempt_line
from datakit.engine.ledger.packed_results import pack
from datakit.engine.observe.observer import Observer
from datakit.engine.quarantine import Allowance
from datakit.engine.scheduler.attempt_queue import Queue
from datakit.engine.scheduler.bisect_input import Halving
from datakit.engine.scheduler.finish import write_partial
from datakit.engine.scheduler.memory_estimates import Budgets
from datakit.engine.scheduler.retry_policy import (
    DEATHS,
    Breaker,
    TaskRecord,
    backoff_seconds,
    drop_proposed,
    judge,
    may_go_on,
    next_attempt,
)
from datakit.engine.task import Phase, Step, Task, TaskResult
from datakit.errors import InputError, NoSpaceError, PartialError, StepFailedError
from datakit.storage.manifest import Manifest, find_manifest

WINDOW = 3  # attempts in flight for each slot
WAIT_SECONDS = 0.5
SHOWN = 20


class OvertakenError(Exception):
    """Another driver has finished the step meanwhile, and removed what our attempts were reading."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__("the step stands")
        self.manifest = manifest


@dataclass(frozen=True)
class Told:
    """The step of which a phase is a part, and who hears of its attempts."""

    step: Step
    ledger: LedgerWriter
    observer: Observer


class PhaseRun:
    """One run of one phase."""

    def __init__(
        self, phase: Phase, digests: Digests, executor: Executor, told: Told, found: Sequence[TaskResult]
    ) -> None:
        """`found`: the results that an earlier run left."""
        self._step, self._phase, self._digests = told.step, phase, digests
        self._executor, self._ledger, self._observer = executor, told.ledger, told.observer
        self._queue = Queue()
        self._records: dict[str, TaskRecord] = {}
        self._running: dict[str, Attempt] = {}
        self._results: dict[str, bytes] = {}  # packed
        self._failed: dict[str, TaskRecord] = {}
        self._parked: dict[str, Attempt] = {}
        self._halving: dict[str, Halving] = {}
        self._budgets, self._breaker = Budgets(phase), Breaker()
        self._allowance = Allowance(phase.tolerance, found)

    def run(self, pending: Sequence[Task], shared: str | None) -> dict[str, bytes]:
        """Every task's packed result. Raises PartialError where some failed, after all others are done."""
        self._shared = shared
        try:
            self._drive(pending)
        except BaseException:
            self._executor.abandon()  # nothing may run on, nor report to the step that comes next
            raise
        if self._failed:
            self._give_up(len(pending))
        return self._results

    def _drive(self, pending: Sequence[Task]) -> None:
        self._queue = Queue(pending)
        while self._queue or self._running or self._parked:
            if not self._queue and not self._running:
                self._settle()
            self._submit()
            for outcome in self._executor.wait(WAIT_SECONDS) if self._running else ():
                self._take(outcome)
            self._ledger.tick()
            self._observer.tick()

    # --- what goes out

    def _submit(self) -> None:
        slots = self._executor.slots
        room = WINDOW * slots - len(self._running)
        while room > 0 and (next_one := self._queue.take(time.monotonic())) is not None:
            attempt = self._first_attempt(next_one, slots) if isinstance(next_one, Task) else next_one
            self._running[attempt.task.key] = attempt
            self._executor.submit(attempt)
            room -= 1
        if self._queue and not self._running:
            time.sleep(min(WAIT_SECONDS, self._queue.ready_in(time.monotonic())))

    def _first_attempt(self, task: Task, slots: int) -> Attempt:
        """A first attempt, with further tasks where they are tiny."""
        more = self._queue.take_fresh(self._budgets.batch(len(self._queue), slots) - 1)
        memory = max(self._budgets.first(one) for one in (task, *more))
        return self._attempt(task, memory, more)

    def _attempt(self, task: Task, memory: int, more: tuple[Task, ...] = ()) -> Attempt:
        phase = self._phase
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
        )

    def _again(self, attempt: Attempt, wait: float = 0.0) -> None:
        self._queue.put_back(attempt, time.monotonic() + wait if wait else 0.0)

    # --- what comes back

    def _take(self, outcome: Outcome) -> None:
        """Enter an outcome, and queue the next attempt where there is one."""
        attempt = self._running.pop(outcome.key)
        if outcome.cause is not Cause.DONE:
            standing = find_manifest(self._step.directory)
            if standing is not None:
                raise OvertakenError(standing)
        if attempt.more and outcome.cause not in (Cause.DONE, Cause.REFUSED):
            self._one_by_one(attempt, outcome)
            return
        for task, single in zip((attempt.task, *attempt.more), _singles(outcome), strict=False):
            self._enter(replace(attempt, task=task, more=()) if attempt.more else attempt, single)

    def _one_by_one(self, attempt: Attempt, outcome: Outcome) -> None:
        """A batch broke off: that counts for none of its tasks, since which one it was is not known."""
        self._observer.attempt_ended(outcome, Verdict.RETRY)
        for task in (attempt.task, *attempt.more):
            self._again(self._attempt(task, self._budgets.declared(task)))

    def _enter(self, attempt: Attempt, outcome: Outcome) -> None:
        key, digest = outcome.key, self._digests.of(attempt.task)
        if key in self._halving:
            self._ledger.append(attempt_line(replace(outcome, result=None), digest))  # never the whole task's
            self._halve_on(key, attempt, outcome)
            return
        self._ledger.append(attempt_line(outcome, digest))
        if outcome.cause is Cause.DONE and key not in self._records:
            self._finish(attempt, outcome)
            return
        record = self._records.setdefault(key, TaskRecord())
        verdict = judge(record, outcome)
        if verdict is Verdict.DONE:
            self._finish(attempt, outcome)
        elif verdict is Verdict.REFUSE:
            self._refuse(outcome)
        elif verdict is Verdict.RETRY:
            self._observer.attempt_ended(outcome, verdict)
            self._again(self._next(attempt, record), backoff_seconds(record))
        elif verdict is Verdict.PROPOSE:
            self._propose(key, attempt, outcome)
        elif outcome.cause in DEATHS and outcome.held is None and Halving.possible(attempt.task):
            self._observer.attempt_ended(outcome, Verdict.RETRY)
            self._halving[key] = Halving.of(attempt.task)
            self._again(replace(self._next(attempt, record), task=self._halving[key].next_task()))
        else:
            self._fail(key, outcome)

    def _next(self, attempt: Attempt, record: TaskRecord) -> Attempt:
        return next_attempt(attempt, record, self._budgets.declared(attempt.task))

    def _finish(self, attempt: Attempt, outcome: Outcome) -> None:
        assert outcome.result is not None
        self._results[attempt.task.key] = pack(outcome.result)  # the task's own key: the outcome's is a copy
        self._allowance.enter(outcome.key, outcome.result)
        self._budgets.enter(attempt.task, outcome)
        self._breaker.enter(Verdict.DONE, outcome)
        self._observer.attempt_ended(outcome, Verdict.DONE)

    def _refuse(self, outcome: Outcome) -> NoReturn:
        self._observer.attempt_ended(outcome, Verdict.REFUSE)
        raise _refusal(outcome)

    def _propose(self, key: str, attempt: Attempt, outcome: Outcome) -> None:
        record = self._records[key]
        assert record.proposed is not None
        if self._allowance.grants(key, record.proposed):
            drop_proposed(record)
            self._observer.attempt_ended(outcome, Verdict.RETRY)
            self._again(self._next(attempt, record))
            return
        self._parked[key] = attempt
        self._observer.attempt_ended(outcome, Verdict.PROPOSE)
        self._stop_if_all_alike(outcome)

    def _settle(self) -> None:
        """Everything else is done: what waits goes on without its record, in the order of the input, or fails."""
        waiting, self._parked = self._parked, {}
        for key in sorted(waiting, key=self._place):
            record = self._records[key]
            assert record.proposed is not None and record.last is not None
            if self._allowance.grants(key, record.proposed, len(waiting)):
                drop_proposed(record)
                self._again(self._next(waiting[key], record))
            else:
                self._failed[key] = record
                self._observer.attempt_ended(record.last, Verdict.FAIL)

    def _place(self, key: str) -> tuple[str, int]:
        proposed = self._records[key].proposed
        assert proposed is not None
        return proposed.file, proposed.position

    def _halve_on(self, key: str, attempt: Attempt, outcome: Outcome) -> None:
        halving, record = self._halving[key], self._records[key]
        record.attempts += 1
        if outcome.cause in DEATHS or outcome.cause is Cause.DONE:
            halving.enter(outcome.cause in DEATHS)
        elif outcome.cause is Cause.REFUSED:
            self._refuse(outcome)
        elif not may_go_on(record, outcome):
            record.last = outcome
            self._fail(key, outcome)
            return
        if halving.found is None:
            self._observer.attempt_ended(outcome, Verdict.RETRY)
            self._again(replace(attempt, number=record.attempts + 1, task=halving.next_task()))
            return
        assert record.last is not None
        record.last = replace(record.last, message=f"{record.last.message}; it is in {halving.found}")
        self._fail(key, record.last)

    def _fail(self, key: str, outcome: Outcome) -> None:
        self._failed[key] = self._records[key]
        self._observer.attempt_ended(outcome, Verdict.FAIL)
        if outcome.error_type == NoSpaceError.__name__:  # so would every other task
            raise StepFailedError(f"{self._step.stage} of {self._step.dataset}: {outcome.message}")
        self._stop_if_all_alike(outcome)

    def _stop_if_all_alike(self, outcome: Outcome) -> None:
        if self._breaker.enter(Verdict.FAIL, outcome):
            raise StepFailedError(
                f"{self._step.stage} of {self._step.dataset}: the first {self._breaker.failed} tasks of phase "
                f"{self._phase.name} all failed alike, so the rest was not tried: {outcome.message}"
            )

    def _give_up(self, count: int) -> None:
        write_partial(self._step, self._phase.name, self._failed)
        where = f"{self._step.stage} of {self._step.dataset}, phase {self._phase.name}"
        lines = [f"  {key}: {why(record)}" for key, record in sorted(self._failed.items())[:SHOWN]]
        text = f"{where}: {len(self._failed)} of {count} tasks failed\n" + "\n".join(lines)
        known = any(record.proposed or record.causes[Cause.QUARANTINE] for record in self._failed.values())
        if not self._results and not known:
            raise StepFailedError(text)
        advice = f"the others are kept; `datakit status {self._step.directory}` lists all; the next run retries these"
        raise PartialError(f"{text}\n{advice}")


def why(record: TaskRecord) -> str:
    """Why a task failed, for people: its last attempt, and the record that is to blame where that is known."""
    assert record.last is not None
    text = f"{record.last.cause} after {record.attempts} attempts: {record.last.message}"
    if record.proposed is None:
        return text
    place = f"{record.proposed.file}:{record.proposed.position}"
    return f"{text}; record {place} is to blame, and max_quarantined does not allow to leave it out"


def _singles(outcome: Outcome) -> list[Outcome]:
    """The outcomes of a batch's tasks, each with its share of what the child cost beside their work."""
    if not outcome.more:
        return [outcome]
    parts = [(outcome.key, outcome.result, outcome.work_seconds)]
    parts += [(done.key, done.result, done.work_seconds) for done in outcome.more]
    count, work = len(parts), sum(seconds for _, _, seconds in parts)
    extra = max(0.0, outcome.seconds - work) / count
    return [
        replace(
            outcome,
            key=key,
            result=result,
            work_seconds=seconds,
            seconds=seconds + extra,
            cpu_seconds=outcome.cpu_seconds / count,
            more=(),
        )
        for key, result, seconds in parts
    ]


def _refusal(outcome: Outcome) -> InputError:
    """The user's error that a child raised, as the same class here."""
    kind = getattr(errors, outcome.error_type, InputError)
    return kind(outcome.message) if issubclass(kind, InputError) else InputError(outcome.message)
