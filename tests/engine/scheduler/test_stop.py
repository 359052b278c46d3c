"""A run that is stopped keeps what its tasks have done and holds no lock, whatever else fails meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from datakit.engine.executor import Attempt, Outcome, Verdict
from datakit.engine.ledger import ledger
from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler import background, run_loop
from datakit.engine.scheduler.driver import StepRun, open_step, run_step
from datakit.engine.scheduler.run_loop import RunLoop
from datakit.engine.task import Output, Plan, Step, Task
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.errors import NoSpaceError, StepFailedError, StorageError, UsageError
from datakit.exit_codes import ExitCode
from datakit.storage.manifest import Manifest, find_manifest
from tests.support.engine.engine_tasks import SCHEMA, number_step, numbers
from tests.support.engine.inline_executor import InlineExecutor
from tests.support.engine.runs import attempts, locked_files


@pytest.fixture(autouse=True)
def _flush_only_when_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "SYNC_SECONDS", 1e9)
    monkeypatch.setattr(run_loop, "STOP_SECONDS", 0.1)


def opened(directory: Path, plan: Plan, observer: Observer | None = None) -> StepRun:
    return open_step(number_step(str(directory)), plan, observer or Observer())


class Failures(Observer):
    """Remembers which steps have ended, and how."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.ended: list[str] = []

    def step_failed(self, step: Step, error: BaseException) -> None:
        self.failed.append(Path(step.directory).name)

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        self.ended.append(Path(step.directory).name)


def waits_for(gate: threading.Event, begun: threading.Event | None = None) -> Plan:
    """Plan nothing until the gate opens."""
    if begun is not None:
        begun.set()
    assert gate.wait(120)
    yield from numbers(1)
    return Output([], SCHEMA)


def test_executor_that_cannot_be_created(tmp_path: Path) -> None:
    def no_cluster() -> InlineExecutor:
        raise UsageError("no cluster")

    with pytest.raises(UsageError, match="no cluster"):
        run_step(number_step(str(tmp_path)), numbers(2), no_cluster, Observer())
    assert not locked_files(tmp_path)
    assert list(ledger.read_ledger(str(tmp_path)))


def test_steps_that_wait_for_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks of `done` have run, but its next phase has not been planned, as every thread is busy."""
    monkeypatch.setattr(background, "MOST_THREADS", 1)
    gate, begun = threading.Event(), threading.Event()
    loop = RunLoop(InlineExecutor, Observer)
    loop.add(done := opened(tmp_path / "done", numbers(2)))
    while done.running is None:
        loop.turn()
    loop.add(opened(tmp_path / "waits", waits_for(gate, begun)))
    assert begun.wait(120)
    while done.running is not None:
        loop.turn()
    loop.stop(KeyboardInterrupt())
    assert len(attempts(tmp_path / "done")) == 2
    assert not locked_files(tmp_path / "done")
    assert locked_files(tmp_path / "waits"), "the thread that still runs may write to its ledger"
    gate.set()


def test_step_that_is_finished_while_the_run_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_loop, "STOP_SECONDS", 60.0)
    gate, seen = threading.Event(), Failures()

    def ends() -> Plan:
        yield from numbers(1)
        assert gate.wait(120)
        return Output([], SCHEMA)

    loop = RunLoop(InlineExecutor, lambda: seen)
    loop.add(step := opened(tmp_path / "ends", ends(), seen))
    loop.add(opened(tmp_path / "other", waits_for(gate), seen))
    while not attempts_of_both_phases(step):
        loop.turn()
    gate.set()
    loop.stop(KeyboardInterrupt())
    assert find_manifest(str(tmp_path / "ends")) is not None
    assert (seen.ended, seen.failed) == (["ends"], ["other"])


def attempts_of_both_phases(step: StepRun) -> bool:
    """Return True once the step's last phase has run."""
    return step.running is None and b'"phase":"second","key"' in b"".join(step.ledger._pending)


def test_cluster_that_is_lost(tmp_path: Path) -> None:
    class Lost(InlineExecutor):
        def wait(self, timeout: float) -> list[Outcome]:
            if not found:
                found.extend(super().wait(timeout))
                return found
            raise StepFailedError("the cluster is lost")

        def cancel(self, *step_directories: str) -> None:
            raise StepFailedError("no cluster to cancel on")

    found, seen = list[Outcome](), Failures()
    loop = RunLoop(Lost, lambda: seen)
    for name in ("a", "b"):
        loop.add(opened(tmp_path / name, numbers(4), seen))
    with pytest.raises(StepFailedError, match="the cluster is lost") as failure:
        run_to_the_end(loop)
    assert "no cluster to cancel on" in failure.value.__notes__[0]
    assert sorted(seen.failed) == ["a", "b"] and not locked_files(tmp_path)
    assert len(attempts(tmp_path / "a")) + len(attempts(tmp_path / "b")) == len(found) > 0


def run_to_the_end(loop: RunLoop) -> None:
    try:
        while len(loop):
            loop.turn()
    except BaseException as error:
        loop.stop(error)
        raise


def test_signal_keeps_its_exit_code_even_if_the_root_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stops(Failures):
        def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
            raise SystemExit(ExitCode.TERMINATED)

        def step_failed(self, step: Step, error: BaseException) -> None:
            super().step_failed(step, error)
            raise StorageError("the events cannot be written")

    seen = Stops()
    loop = RunLoop(InlineExecutor, lambda: seen)
    for name in ("a", "b"):
        loop.add(opened(tmp_path / name, numbers(2), seen))
    with pytest.raises(SystemExit) as end:
        run_to_the_end(loop)
    assert end.value.code == ExitCode.TERMINATED and "the events cannot be written" in end.value.__notes__[0]
    assert sorted(seen.failed) == ["a", "b"] and not locked_files(tmp_path)


def test_signal_before_a_thread_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    executor, seen = LocalExecutor(1), Failures()
    loop = RunLoop(lambda: executor, lambda: seen)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt) as stopped:
        patched.setattr(threading.Thread, "start", interrupted)
        loop.add(opened(tmp_path / "step", numbers(1), seen))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(threading.Thread, "start", interrupted)
        executor.submit(Attempt(Task("only", "tests:none", {}), "test", str(tmp_path / "step"), 1, 1, 1 << 30))
    loop.stop(stopped.value)
    executor.close()
    assert seen.failed == ["step"]


def test_results_that_arrive_with_the_error_that_stops_the_run(tmp_path: Path) -> None:
    """The second attempt at the first task and the only attempt at the third end together."""
    with pytest.raises(NoSpaceError):
        run_step(number_step(str(tmp_path)), numbers(3, {0: "full"}), InlineExecutor, Observer())
    done = [line.key for line in attempts(tmp_path) if line.result is not None]
    assert done == ["number-001", "number-002"]


def test_failed_step_whose_failure_cannot_be_reported(tmp_path: Path) -> None:
    class Mute(Failures):
        def step_failed(self, step: Step, error: BaseException) -> None:
            raise StorageError("the events cannot be written")

    with pytest.raises(StorageError, match="the events cannot be written"):
        run_step(number_step(str(tmp_path)), numbers(3, dict.fromkeys(range(3), "raise")), InlineExecutor, Mute())
    assert not locked_files(tmp_path) and len(attempts(tmp_path)) >= 3
