"""Steps run at the same time over one executor; a failed step stops no other; urgent steps come first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from datakit.engine.executor import Cause, Outcome, Verdict
from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler.driver import StepRun, open_step, run_step
from datakit.engine.scheduler.run_loop import WINDOW, Ended, RunLoop
from datakit.engine.task import Output, Phase, Plan, Step, Task
from datakit.errors import DatakitError, NoSpaceError, PartialError, StepFailedError
from datakit.storage.manifest import Manifest, find_manifest
from tests.support.engine.engine_tasks import SCHEMA, meeting, number_step, numbers
from tests.support.engine.runs import attempts, outputs, shared_executor


def opened(directory: Path, plan: Plan, observer: Observer | None = None) -> StepRun:
    return open_step(number_step(str(directory)), plan, observer or Observer())


def run_all(*steps: tuple[StepRun, tuple[float, ...]], workers: int = 2) -> dict[str, Ended]:
    """Run steps until all have ended. Return their ends by the names of their directories."""
    loop, ends = RunLoop(lambda: shared_executor(workers), Observer), []
    try:
        for step, priority in steps:
            loop.add(step, priority)
        while len(loop):
            ends += loop.turn()
    except BaseException as error:
        loop.stop(error)
        raise
    return {Path(end.step.directory).name: end for end in ends}


def test_steps_run_at_the_same_time(tmp_path: Path) -> None:
    """Each task waits for the task of the other step, so the test would hang if the steps ran one after the other."""
    (place := tmp_path / "place").mkdir()
    ends = run_all(
        (opened(tmp_path / "a", meeting(place, "a", "b")), (0,)),
        (opened(tmp_path / "b", meeting(place, "b", "a")), (1,)),
    )
    assert all(end.manifest is not None and end.error is None for end in ends.values()) and len(ends) == 2


@pytest.mark.parametrize("workers", [1, 4])
def test_steps_together_write_the_bytes_of_each_alone(tmp_path: Path, workers: int) -> None:
    names = [f"step-{number}" for number in range(5)]
    run_all(*((opened(tmp_path / name, numbers(4 + n)), (n,)) for n, name in enumerate(names)), workers=workers)
    for number, name in enumerate(names):
        alone = tmp_path / f"{name}-alone"
        run_step(number_step(str(alone)), numbers(4 + number), lambda: shared_executor(2), Observer())
        assert outputs(tmp_path / name) == outputs(alone)


@pytest.mark.parametrize(("faults", "kind"), [(dict.fromkeys(range(4), "raise"), StepFailedError),
                                              ({1: "raise"}, PartialError)])  # fmt: skip
def test_failed_step_ends_no_other_step(tmp_path: Path, faults: dict[int, str], kind: type[DatakitError]) -> None:
    bad, good = opened(tmp_path / "bad", numbers(4, faults)), opened(tmp_path / "good", numbers(6))
    ends = run_all((bad, (0,)), (good, (1,)))
    assert isinstance(ends["bad"].error, kind) and find_manifest(str(tmp_path / "bad")) is None
    assert ends["good"].manifest is not None and ends["good"].manifest.totals.rows == 12
    assert {line.cause for line in attempts(tmp_path / "good")} == {Cause.DONE}


def test_step_that_stops_cancels_its_own_attempts_only(tmp_path: Path) -> None:
    """The refused task ends its step, although another task of the step would sleep for minutes."""
    (place := tmp_path / "place").mkdir()

    class AfterTheEnd(Observer):
        def step_failed(self, step: Step, error: BaseException) -> None:
            (place / "bad").touch()  # the good step's task waits for this

    def plan() -> Plan:
        function = "tests.support.engine.engine_tasks:write_number"
        tasks = [Task("sleeps", function, {"number": 1, "fault": "sleep"}, input_bytes=2)]
        tasks += [Task("full", function, {"number": 2, "fault": "refuse"}, input_bytes=1)]
        yield Phase("only", tuple(tasks), hang_seconds=900)
        return Output([], SCHEMA)

    refused = _raise_at_first_refusal(opened(tmp_path / "bad", plan(), AfterTheEnd()))
    ends = run_all((refused, (0,)), (opened(tmp_path / "good", meeting(place, "good", "bad")), (1,)), workers=3)
    assert isinstance(ends["bad"].error, StepFailedError) and ends["good"].manifest is not None
    assert [line.key for line in attempts(tmp_path / "bad")] == ["full"]


def _raise_at_first_refusal(step: StepRun) -> StepRun:
    """Make the step stop at its first failed attempt, as it otherwise does after many of them."""
    enter: Callable[..., None] = step.enter

    def entered(start: object, slots: int) -> None:
        enter(start, slots)
        assert step.running is not None
        take = step.running.take

        def stopping(outcome: Outcome) -> None:
            take(outcome)
            if outcome.cause is not Cause.DONE:
                raise StepFailedError("stopped")

        step.running.take = stopping

    step.enter = entered
    return step


def test_full_disk_ends_every_step(tmp_path: Path) -> None:
    (place := tmp_path / "place").mkdir()
    steps = opened(tmp_path / "full", numbers(2, {0: "full"})), opened(tmp_path / "b", meeting(place, "b", "nobody"))
    with pytest.raises(NoSpaceError, match="no space left"):
        run_all(*((step, (0,)) for step in steps))
    assert not any(find_manifest(str(tmp_path / name)) for name in ("full", "b"))


def test_urgent_step_overtakes_all_but_a_window_of_attempts(tmp_path: Path) -> None:
    order: list[str] = []
    loop = RunLoop(lambda: shared_executor(1), Observer)

    class Order(Observer):
        def __init__(self, name: str) -> None:
            self._name = name

        def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
            if self._name == "later":
                loop.add(opened(tmp_path / "urgent", numbers(3), Order("urgent")), (0,))

        def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
            order.extend([self._name] * (1 + len(outcome.more)))

    loop.add(opened(tmp_path / "later", _one_by_one(30), Order("later")), (1,))
    while len(loop):
        loop.turn()
    first = order.index("urgent")
    assert order[first : first + 3] == ["urgent"] * 3, order
    last = len(order) - 1 - order[::-1].index("urgent")
    assert order[:last].count("later") < 30 - WINDOW, order


def _one_by_one(count: int) -> Plan:
    function = "tests.support.engine.engine_tasks:write_number"
    tasks = tuple(Task(f"number-{number:03d}", function, {"number": number}) for number in range(count))
    yield Phase("only", tasks, batches=False)
    return Output([], SCHEMA)


def test_plan_that_waits_holds_up_no_other_step(tmp_path: Path) -> None:
    done = threading.Event()

    class Done(Observer):
        def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
            done.set()

    def waiting() -> Plan:
        assert done.wait(120), "the other step has not ended in the meantime"
        yield from numbers(2)
        return Output([], SCHEMA)

    ends = run_all((opened(tmp_path / "waits", waiting()), (0,)), (opened(tmp_path / "b", numbers(3), Done()), (1,)))
    assert {name for name, end in ends.items() if end.manifest is not None} == {"waits", "b"}
