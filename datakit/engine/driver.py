"""Runs a step: phases in order, tasks through an executor, results into the ledger, and the manifest last.

All policy is here, above the executor's seam, so it is the same on one machine and on a cluster. The driver holds a
small record per task and never data; it keeps two to three times as many attempts in flight as there are slots, biggest
input first. A step that is done costs one read of its manifest; a step that is half done costs one listing and one read
of its ledger, and only the missing tasks are submitted.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from datakit import errors
from datakit.engine import leftovers
from datakit.engine.executor import Attempt, Cause, Executor, Outcome
from datakit.engine.finish import finish_step, remove_exchange, write_partial
from datakit.engine.ledger import (
    LedgerWriter,
    PhaseLine,
    attempt_line,
    driver_name,
    finished,
    read_ledger,
    task_digests,
)
from datakit.engine.policy import Breaker, TaskRecord, Verdict, backoff_seconds, judge, next_attempt
from datakit.engine.task import Output, Phase, Plan, Step, Task, TaskResult, encode
from datakit.engine.watch import Watch
from datakit.errors import InputError, PartialError, StepFailedError, StorageError
from datakit.storage import atomic, urls
from datakit.storage.manifest import Manifest, find_manifest

WINDOW = 3  # attempts in flight for each slot
WAIT_SECONDS = 0.5
SHARED_FOLDER = "exchange/shared"

ExecutorFactory = Callable[[], Executor]


@dataclass(frozen=True)
class RunOptions:
    """Operation parameters of a run; none of them is in a fingerprint."""

    driver: str = field(default_factory=driver_name)


def run_step(step: Step, plan: Plan, executor: ExecutorFactory, options: RunOptions, watch: Watch) -> Manifest:
    """Run a step to its manifest, or find it done. The executor is asked for when the first task must run.

    Raises InputError (the user must act), PartialError (some tasks failed, the others are kept), StepFailedError.
    """
    standing = find_manifest(step.directory)
    if standing is not None:
        watch.step_ended(step, standing, True)
        return standing
    watch.step_started(step)
    run = _StepRun(step, executor, LedgerWriter(step.directory, options.driver), watch)
    try:
        manifest = run.run(plan)
    except _OvertakenError as overtaken:
        manifest = overtaken.manifest
        remove_exchange(step)  # what our last attempts left there
    except BaseException as error:
        watch.step_failed(step, error)
        raise
    finally:
        run.ledger.close()
    watch.step_ended(step, manifest, False)
    return manifest


class _OvertakenError(Exception):
    """Another driver has finished the step meanwhile, and removed what our attempts were reading."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__("the step stands")
        self.manifest = manifest


class _StepRun:
    """One run of one step."""

    def __init__(self, step: Step, executor: ExecutorFactory, ledger: LedgerWriter, watch: Watch) -> None:
        self.step, self.ledger, self.watch, self._executor = step, ledger, watch, executor
        leftovers.remove_dead_files(step.directory)
        self._done = finished(list(read_ledger(step.directory)))
        self._sizes = {info.path: info.size for info in urls.listing(step.directory)} if self._done else {}
        self._results: list[TaskResult] = []
        self.ledger.begin()

    def run(self, plan: Plan) -> Manifest:
        """Drive the plan to its Output, phase by phase, then write the manifest."""
        try:
            phase = next(plan)
            while True:
                results = self._run_phase(phase)
                self._results += results
                phase = plan.send(results)
        except StopIteration as stop:
            output: Output = stop.value
        except StorageError:
            standing = find_manifest(self.step.directory)
            if standing is None:
                raise
            raise _OvertakenError(standing) from None  # its owner tidied up under our hands
        self.ledger.flush()
        leftovers.remove_dead_files(self.step.directory)  # also of those that were still dying when we began
        return finish_step(self.step, output, self._results)

    def _run_phase(self, phase: Phase) -> list[TaskResult]:
        digests = task_digests(phase)
        if len(digests) != len(phase.tasks):
            raise ValueError(f"{self.step.stage}, phase {phase.name}: two tasks have the same key")
        results = {task.key: found for task in phase.tasks if (found := self._find(phase, task, digests[task.key]))}
        pending = [task for task in phase.tasks if task.key not in results]
        if pending:
            keys, sizes = list(digests), [task.input_bytes for task in phase.tasks]
            self.ledger.append(PhaseLine(phase.name, keys, sizes, time.time()))
            executor = self._executor()
            self.watch.phase_started(self.step, phase, len(results), executor.slots)
            results |= _PhaseRun(phase, digests, executor, self).run(pending)
        return [results[task.key] for task in phase.tasks]

    def _find(self, phase: Phase, task: Task, digest: str) -> TaskResult | None:
        """The result of an earlier run, if all that it wrote still is there with its size."""
        result = self._done.get((phase.name, task.key, digest))
        if result is None or any(self._sizes.get(output.path) != output.bytes for output in result.outputs):
            return None
        return result


class _PhaseRun:
    """The pending tasks of one phase: submitted, judged, retried."""

    def __init__(self, phase: Phase, digests: dict[str, str], executor: Executor, run: _StepRun) -> None:
        self._step, self._phase, self._digests = run.step, phase, digests
        self._executor, self._ledger, self._watch = executor, run.ledger, run.watch
        self._records: dict[str, TaskRecord] = {}
        self._running: dict[str, Attempt] = {}
        self._results: dict[str, TaskResult] = {}
        self._failed: dict[str, TaskRecord] = {}
        self._breaker = Breaker()

    def run(self, pending: list[Task]) -> dict[str, TaskResult]:
        """Every task's result. Raises PartialError where some failed, after all others are done."""
        try:
            self._drive(pending)
        except BaseException:
            self._executor.abandon()  # nothing may run on, nor report to the step that comes next
            raise
        if self._failed:
            self._give_up(len(pending))
        return self._results

    def _drive(self, pending: list[Task]) -> None:
        shared = self._share()
        queue = [
            (0.0, -task.input_bytes, number, self._attempt(task, shared)) for number, task in enumerate(pending)
        ]  # a heap: ready time, then the biggest input first
        heapq.heapify(queue)
        number = len(queue)
        while queue or self._running:
            self._submit(queue)
            for outcome in self._executor.wait(WAIT_SECONDS):
                again = self._take(outcome)
                if again is not None:
                    wait = backoff_seconds(self._records[outcome.key])
                    number += 1  # a retry goes before what was never tried: a typo shows at once
                    heapq.heappush(queue, (time.monotonic() + wait if wait else -1.0, 0, number, again))
            self._ledger.tick()
            self._watch.tick()

    def _submit(self, queue: list[tuple[float, int, int, Attempt]]) -> None:
        room = WINDOW * self._executor.slots - len(self._running)
        while queue and room > 0 and queue[0][0] <= time.monotonic():
            attempt = heapq.heappop(queue)[3]
            self._running[attempt.task.key] = attempt
            self._executor.submit(attempt)
            room -= 1
        if queue and not self._running:
            time.sleep(min(WAIT_SECONDS, max(0.0, queue[0][0] - time.monotonic())))

    def _take(self, outcome: Outcome) -> Attempt | None:
        """Enter an outcome; the next attempt where there is one."""
        attempt = self._running.pop(outcome.key)
        if outcome.cause is not Cause.DONE:
            standing = find_manifest(self._step.directory)
            if standing is not None:
                raise _OvertakenError(standing)
        record = self._records.setdefault(outcome.key, TaskRecord())
        verdict = judge(record, outcome)
        self._ledger.append(attempt_line(outcome, self._digests[outcome.key]))
        self._watch.attempt_ended(outcome, verdict)
        if verdict is Verdict.REFUSE:
            raise _refusal(outcome)
        if verdict is Verdict.RETRY:
            return next_attempt(attempt, outcome)
        if verdict is Verdict.FAIL:
            self._failed[outcome.key] = record
        else:
            assert outcome.result is not None
            self._results[outcome.key] = outcome.result
        if self._breaker.enter(verdict, outcome):
            raise StepFailedError(
                f"{self._step.stage} of {self._step.dataset}: the first {len(self._failed)} tasks of phase "
                f"{self._phase.name} all failed alike, so the rest was not tried: {outcome.message}"
            )
        return None

    def _attempt(self, task: Task, shared: str | None) -> Attempt:
        memory = int(self._phase.memory_bytes + self._phase.memory_per_input_byte * task.input_bytes)
        return Attempt(
            task, self._phase.name, self._step.directory, 1, self._phase.cpus, memory, self._phase.preloads, shared
        )

    def _share(self) -> str | None:
        """Write what all tasks of the phase need, once, where every node can read it."""
        if not self._phase.shared:
            return None
        data = encode(self._phase.shared)
        path = f"{SHARED_FOLDER}/{self._phase.name}-{next(iter(self._digests.values()))}.msgpack"
        atomic.commit_bytes(data, urls.join(self._step.directory, path))
        return path

    def _give_up(self, count: int) -> None:
        write_partial(self._step, self._phase.name, self._failed)
        where = f"{self._step.stage} of {self._step.dataset}, phase {self._phase.name}"
        lines = [
            f"  {key}: {record.last.cause} after {record.attempts} attempts: {record.last.message}"
            for key, record in sorted(self._failed.items())[:20]
            if record.last is not None
        ]
        text = f"{where}: {len(self._failed)} of {count} tasks failed\n" + "\n".join(lines)
        if not self._results:
            raise StepFailedError(text)
        advice = f"the others are kept; `datakit status {self._step.directory}` lists all; the next run retries these"
        raise PartialError(f"{text}\n{advice}")


def _refusal(outcome: Outcome) -> InputError:
    """The user's error that a child raised, as the same class here."""
    kind = getattr(errors, outcome.error_type, InputError)
    return kind(outcome.message) if issubclass(kind, InputError) else InputError(outcome.message)
