"""Attempts on a Ray node run in children of a fork server, and their deaths have the right causes."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from datakit.engine.executor import Cause
from datakit.engine.observe.observer import Observer
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.engine.scheduler.driver import run_step
from datakit.engine.task import Preload
from datakit.errors import InputError
from tests.support.engine import compiled_example
from tests.support.engine.attempts import attempt, run_all, sleeping
from tests.support.engine.bad_preloads import preload
from tests.support.engine.engine_tasks import number_step, one_phase
from tests.support.engine.runs import DEADLINE_SECONDS
from tests.support.faults.cluster import wait_until
from tests.support.processes import ended


def test_children_are_as_clean_as_local_ones(executor: RayExecutor, tmp_path: Path) -> None:
    (outcome,) = run_all(executor, [attempt("engine_tasks:look_around", tmp_path)])
    assert outcome.result is not None, outcome
    facts = outcome.result.details
    assert not {"ray", "jax", "datakit.cli", "pytest"} & set(facts["modules"])
    assert facts["main"] is None, "neither Ray's worker script nor the driver's"
    assert facts["tasks"] - 1 <= 1, "one thread, and at most one of pyarrow's allocator"
    assert facts["parent"] not in (os.getpid(), *(child.pid for child in psutil.Process().children()))
    server = psutil.Process(facts["parent"])
    assert server.cmdline()[1:3] == ["-P", "-c"], "the parent is the fork server"
    template, worker = server.parents()[:2]
    assert template.cmdline()[1:3] == ["-P", "-c"], "whose parent is the template process"
    assert worker.cmdline()[0].startswith("ray::"), "whose parent is the Ray worker"


def test_attempts_reuse_fork_servers(executor: RayExecutor, tmp_path: Path) -> None:
    def parents() -> set[int]:
        attempts = [attempt("engine_tasks:look_around", tmp_path, number) for number in range(20)]
        return {outcome.result.details["parent"] for outcome in run_all(executor, attempts) if outcome.result}

    before, count, started = parents(), 50, time.monotonic()
    attempts = [attempt("engine_tasks:write_number", tmp_path, number, number=number) for number in range(count)]
    outcomes = run_all(executor, attempts)
    slot = (time.monotonic() - started) * executor.slots / count
    work = sum(outcome.work_seconds for outcome in outcomes) / count
    print(f"\nslot time of an attempt on Ray: {slot * 1e3:.1f} ms, {work * 1e3:.1f} ms of it work", file=sys.stderr)
    assert {outcome.cause for outcome in outcomes} == {Cause.DONE}
    assert len(before | parents()) <= 2 * executor.slots


def test_attempts_reuse_children(executor: RayExecutor, tmp_path: Path) -> None:
    attempts = [attempt("engine_tasks:look_around", tmp_path, number) for number in range(20)]
    results = [outcome.result for outcome in run_all(executor, attempts)]
    assert None not in results
    assert len({result.details["pid"] for result in results if result}) < len(attempts)


def test_compilation_on_a_node_reaches_the_driver(
    executor: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = "tests.support.engine.compiled_example"
    source = Path(compiled_example.__file__)
    for cached in (source.parent / "__pycache__").glob(f"{source.stem}.increased*"):
        cached.unlink()
    one = replace(
        attempt("engine_tasks:write_number", tmp_path, 1, number=1, fault="nap"),
        preloads=(Preload(example, f"{example}:warm"),),
    )
    executor.submit(one)
    seen, outcomes = False, []
    while not outcomes:
        outcomes = executor.wait(0.5)
        seen = seen or executor.compiling
    assert seen and not executor.compiling
    assert outcomes[0].cause is Cause.DONE


def test_storage_variables_reach_the_nodes(executor: RayExecutor, tmp_path: Path) -> None:
    (outcome,) = run_all(executor, [attempt("ray_tasks:variables", tmp_path, names=["DATAKIT_TEST_VARIABLE"])])
    assert outcome.result is not None
    assert outcome.result.details == {"DATAKIT_TEST_VARIABLE": "forwarded"}


def test_killed_ray_workers_leave_no_orphans(
    executor: RayExecutor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    child, server, worker = sleeping(executor, tmp_path)
    worker.send_signal(signal.SIGKILL)
    end, outcomes = time.monotonic() + DEADLINE_SECONDS, []
    while not outcomes and time.monotonic() < end:
        outcomes = executor.wait(1.0)
    (outcome,) = outcomes
    assert (outcome.cause, outcome.error_type) == (Cause.INFRASTRUCTURE, "WorkerCrashedError")
    assert "its Ray worker process died (WorkerCrashedError" in outcome.message
    assert wait_until(lambda: ended(child) and ended(server), 60)
    run_all(executor, [attempt("engine_tasks:write_number", tmp_path, number=1)])
    assert capfd.readouterr().out == "", "Ray must not write to the driver's standard output"


def test_killed_children_are_not_infrastructure(executor: RayExecutor, tmp_path: Path) -> None:
    child, _, worker = sleeping(executor, tmp_path)
    child.send_signal(signal.SIGKILL)
    (outcome,) = executor.wait(DEADLINE_SECONDS)
    assert (outcome.cause, outcome.error_type) == (Cause.KILLED, "SIGKILL")
    assert worker.is_running()


def test_second_equal_death_of_a_starting_server_ends_the_step(executor: RayExecutor, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    plan = one_phase(preload("leave_with_a_message", str(starts)))
    with pytest.raises(InputError, match=r"while starting \(exit code 127\)[^$]*libexample.so.3: cannot open"):
        run_step(number_step(str(tmp_path / "step")), plan, lambda: executor, Observer())
    assert 2 <= len(starts.read_text()) <= 4, "at most one further start in each worker"
