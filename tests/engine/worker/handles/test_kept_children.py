"""First attempts of a stage share a child, as long as nothing that one of them does can reach the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest

import datakit
from datakit.engine.disk_limits import DiskLimits
from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.task import RecordRange, encode
from datakit.engine.worker.handles import kept_children
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.errors import ExpansionError
from tests.support.engine.attempts import attempt, run_all
from tests.support.engine.children.leaving_tasks import EFFECTS
from tests.support.engine.runs import DEADLINE_SECONDS, fresh_executor, wait_until
from tests.support.paths import REPOSITORY
from tests.support.processes import ended
from tests.support.stdlib_shelf import write_shelf
from tests.support.trees import tree

HARMLESS = ("nothing", "pool", "some memory")  # less than MOST_RETAINED, which "memory" exceeds
MANY_SECONDS = 600.0


@pytest.fixture(scope="module")
def executor() -> Iterator[LocalExecutor]:
    """An executor with one slot, so attempts run in the order in which they are submitted."""
    with fresh_executor(1) as executor:
        yield executor


@pytest.fixture
def idle_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle children are not ended because of the time."""
    monkeypatch.setattr(kept_children, "IDLE_SECONDS", MANY_SECONDS)


def leaving(what: str = "nothing", index: int = 1) -> Attempt:
    """Return an attempt at a task that leaves something in its process."""
    return attempt("children.leaving_tasks:leave", "/nowhere", index, what=what)


def using(function: str, **arguments: object) -> Attempt:
    """Return an attempt at another function of leaving_tasks."""
    return attempt(f"children.leaving_tasks:{function}", "/nowhere", 1, **arguments)


def pid(outcome: Outcome) -> int:
    """Return the id of the process in which a finished attempt ran."""
    assert outcome.result is not None, outcome.message
    return outcome.result.details["pid"]


def pids(executor: LocalExecutor, *attempts: Attempt) -> list[int]:
    """Run attempts; return the processes in which they ran."""
    return [pid(outcome) for outcome in run_all(executor, list(attempts))]


def test_first_attempts_share_a_child(executor: LocalExecutor) -> None:
    assert len(set(pids(executor, *(leaving(index=number) for number in range(10))))) == 1


@pytest.mark.parametrize("effect", EFFECTS)
def test_child_is_used_again_only_if_the_task_left_nothing(executor: LocalExecutor, effect: str) -> None:
    if effect == "processors" and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("this machine has one processor")
    first, second, third = pids(executor, leaving(effect), leaving(index=2), leaving(index=3))
    assert (first == second) == (effect in HARMLESS)
    assert second == third


def test_other_stages_processors_and_retries_get_other_children(executor: LocalExecutor) -> None:
    others = [replace(leaving(), stage="other"), replace(leaving(), cpus=2), replace(leaving(), own_child=True)]
    for other in others:
        first, second, third = pids(executor, leaving(), other, other)
        assert first != second
        assert (second == third) != other.own_child


def test_number_of_attempts_of_a_child_is_limited(executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_children, "MOST_ATTEMPTS", 3)
    found = pids(executor, *(replace(leaving(index=number), stage="limited") for number in range(7)))
    assert [found.count(one) for one in dict.fromkeys(found)] == [3, 3, 1]


def test_crash_costs_only_the_attempt_that_crashes(executor: LocalExecutor, tmp_path: Path) -> None:
    crash = attempt("children.leaving_tasks:crash_at_record", tmp_path, file=str(tmp_path / "pid"))
    first, second, crashed, fourth = run_all(executor, [leaving(), leaving(index=2), crash, leaving(index=4)])
    assert pid(first) == pid(second) == int((tmp_path / "pid").read_text()) != pid(fourth)
    assert (crashed.key, crashed.cause, crashed.error_type) == (crash.task.key, Cause.CRASH, "SIGSEGV")
    assert crashed.in_progress == RecordRange("records.txt", 41)
    assert "after 41 records and 1000 bytes, while processing records.txt:41" in crashed.message
    assert "in crash_at_record" in crashed.message, "the stack is read from the file of this attempt"


def test_hang_is_noticed_in_a_later_attempt(executor: LocalExecutor, tmp_path: Path) -> None:
    slow = attempt("engine_tasks:write_number", tmp_path, number=1, fault="sleep")
    attempts = [leaving(), replace(slow, hang_seconds=0.5), leaving(index=3)]
    outcomes = {outcome.key: outcome for outcome in run_all(executor, attempts)}  # the silent one lends its slot
    first, hung, third = (outcomes[one.task.key] for one in attempts)
    assert (hung.cause, pid(first) == pid(third)) == (Cause.HANG, False)
    assert "in misbehave" in hung.message


def test_each_attempt_has_its_own_peak_of_memory(executor: LocalExecutor) -> None:
    """The spikes are too short for the watcher to be sure to see them."""
    sizes = [400 << 20, 0, 300 << 20, 0]
    outcomes = run_all(executor, [using("spike", bytes=size) for size in sizes])
    assert len({pid(outcome) for outcome in outcomes}) == 1
    for size, outcome in zip(sizes, outcomes, strict=True):
        assert size - (4 << 20) <= outcome.peak_memory < size + (100 << 20)
        assert size - (4 << 20) <= outcome.peak_resident < size + (300 << 20)


def test_budget_of_each_attempt_is_its_own(executor: LocalExecutor) -> None:
    small, large = 160 << 20, 400 << 20
    attempts = [
        replace(using("spike", bytes=300 << 20), memory_bytes=large),
        replace(attempt("memory_tasks:overfill", "/nowhere", library="numpy", at_once=False), memory_bytes=small),
        replace(using("spike", bytes=300 << 20), memory_bytes=large),
        replace(using("spike", bytes=0), memory_bytes=small),
        replace(using("spike", bytes=300 << 20), memory_bytes=large),
    ]
    outcomes = run_all(executor, attempts)
    assert [outcome.cause for outcome in outcomes] == [Cause.DONE, Cause.MEMORY, *[Cause.DONE] * 3]
    assert 0.9 * small < outcomes[1].peak_memory < 1.1 * small + (64 << 20)
    assert pid(outcomes[2]) == pid(outcomes[3]) == pid(outcomes[4])


def test_each_attempt_is_charged_for_its_own_cpu_time(executor: LocalExecutor) -> None:
    long, short = run_all(executor, [using("compute", seconds=0.5), using("compute", seconds=0.0)])
    assert pid(long) == pid(short)
    assert long.cpu_seconds >= 0.5 and short.cpu_seconds < 0.4


def test_each_attempt_is_charged_for_its_own_writes(executor: LocalExecutor) -> None:
    limits = DiskLimits(max_expansion=10, expansion_floor_bytes=1 << 20)
    attempts = [replace(using("write", bytes=size), limits=limits) for size in (1_000_000, 1_000_000, 100, 1_100_000)]
    *written, refused = run_all(executor, attempts)
    assert len({pid(outcome) for outcome in written}) == 1
    assert [outcome.written // 100_000 for outcome in written] == [10, 10, 0]
    assert (refused.cause, refused.error_type) == (Cause.REFUSED, ExpansionError.__name__)


def test_each_attempt_gets_the_shared_data_unchanged(executor: LocalExecutor, tmp_path: Path) -> None:
    (tmp_path / "shared.msgpack").write_bytes(encode({"numbers": [7]}))
    one = attempt("children.leaving_tasks:change_shared", tmp_path)
    outcomes = run_all(executor, [replace(one, shared="shared.msgpack")] * 2)
    assert pid(outcomes[0]) == pid(outcomes[1])
    assert [outcome.result.details["numbers"] for outcome in outcomes if outcome.result] == [[7, 1], [7, 1]]


@pytest.mark.usefixtures("idle_for_long")
def test_killed_idle_child_is_replaced() -> None:
    with fresh_executor(1) as executor:
        (first,) = pids(executor, leaving())
        os.kill(first, signal.SIGKILL)
        (second,) = pids(executor, leaving())
        assert first != second
        os.kill(second, signal.SIGSTOP)  # now the death comes after the request has been sent
        executor.submit(leaving())
        wait_until(lambda: len(executor._kept) == 0)
        time.sleep(0.2)
        os.kill(second, signal.SIGKILL)
        (outcome,) = executor.wait(DEADLINE_SECONDS)
        assert outcome.cause is Cause.DONE and pid(outcome) != second


@pytest.mark.usefixtures("idle_for_long")
def test_child_that_is_stopped_does_not_outlive_an_attempt_that_the_engine_fails() -> None:
    with fresh_executor(1) as executor:
        (first,) = pids(executor, leaving())
        child = psutil.Process(first)
        os.kill(first, signal.SIGSTOP)
        with patch.object(executor, "_lend_slot", side_effect=RuntimeError("broken")):
            (outcome,) = run_all(executor, [replace(leaving(), hang_seconds=MANY_SECONDS)])
        assert outcome.cause is Cause.INFRASTRUCTURE and "the engine itself failed" in outcome.message
        wait_until(lambda: ended(child))


@pytest.mark.usefixtures("idle_for_long")
def test_idle_child_dies_with_its_fork_server() -> None:
    with fresh_executor(1) as executor:
        (first,) = pids(executor, leaving())
        child = psutil.Process(first)
        child.parent().kill()  # pyright: ignore[reportOptionalMemberAccess]
        wait_until(lambda: ended(child))
        outcomes = [run_all(executor, [leaving()])[0] for _ in range(2)]  # the dying server may be asked once more
        assert pid(outcomes[1]) != first


def test_idle_child_dies_with_the_process_that_keeps_it() -> None:
    script = f"""
import time
from datakit.engine.worker.handles import kept_children
from datakit.engine.worker.local_executor import LocalExecutor
from tests.support.engine.attempts import attempt, run_all
kept_children.IDLE_SECONDS = {MANY_SECONDS}
(one,) = run_all(LocalExecutor(1), [attempt("children.leaving_tasks:leave", "/nowhere", what="nothing")])
print(one.result.details["pid"], flush=True)
time.sleep({MANY_SECONDS})
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as driver:
        assert driver.stdout is not None
        child = psutil.Process(int(driver.stdout.readline()))
        assert not ended(child)
        driver.kill()
    wait_until(lambda: ended(child))


def test_idle_child_is_ended_soon() -> None:
    with fresh_executor(1) as executor:
        (pid,) = pids(executor, leaving())
        wait_until(lambda: not psutil.pid_exists(pid))
        assert len(executor._kept) == 0


@pytest.mark.usefixtures("idle_for_long")
def test_no_more_children_than_attempts_have_run_at_once() -> None:
    with fresh_executor(1) as executor:
        first = psutil.Process(pids(executor, leaving())[0])
        (second,) = pids(executor, replace(leaving(), stage="other"))
        assert ended(first)
        assert pids(executor, replace(leaving(), stage="other")) == [second]


@pytest.mark.usefixtures("idle_for_long")
def test_idle_child_is_ended_if_its_memory_is_needed() -> None:
    with fresh_executor(2, 2 << 30) as executor:
        run_all(executor, [leaving(), leaving(index=2)])  # two at a time
        wait_until(lambda: len(executor._kept) > 0)
        idle = [psutil.Process(one.child.pid) for one in executor._kept._idle]
        assert idle and all(one.child.retained > 0 for one in executor._kept._idle)
        (other,) = pids(executor, replace(leaving(), stage="other", memory_bytes=2 << 30))
        assert all(ended(child) for child in idle) and other not in [child.pid for child in idle]


@pytest.mark.usefixtures("idle_for_long")
def test_closing_ends_idle_children() -> None:
    with fresh_executor(1) as executor:
        child = psutil.Process(pids(executor, leaving())[0])
    assert ended(child)


def test_outputs_do_not_depend_on_which_attempts_share_a_child(tmp_path: Path) -> None:
    recipe = write_shelf(tmp_path / "shelf")
    found: list[dict[str, str]] = []
    for most, workers in ((64, 1), (1, 2)):
        root = str(tmp_path / f"most-{most}")
        with patch.object(kept_children, "MOST_ATTEMPTS", most):
            datakit.run(str(recipe), root=root, workers=workers)
        found.append(tree(root))
    assert len(found[0]) > 10 and found[0] == found[1]
