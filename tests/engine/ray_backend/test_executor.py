"""Attempts and steps on a cluster end as they do on one machine."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from datakit.engine.executor import Cause, Executor
from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.engine.observe.observer import Observer
from datakit.engine.ray_backend import executor as backend
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.engine.ray_backend.nodes import Nodes
from datakit.engine.scheduler.driver import run_step
from datakit.engine.task import Plan
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.errors import ColumnError, StepFailedError
from datakit.storage import urls
from datakit.storage.manifest import Manifest
from tests.support.engine import engine_tasks, ray_tasks
from tests.support.engine.attempts import attempt, run_all
from tests.support.faults.cluster import SharedCluster, attempts_on, ray_cluster, wait_until
from tests.support.processes import ended
from tests.support.s3 import s3_root


def run(executor: Executor, directory: Path | str, plan: Plan) -> Manifest:
    """Run a plan as a step in `directory`."""
    step = engine_tasks.number_step(str(directory))
    return run_step(step, plan, lambda: executor, Observer())


class InBackground:
    """Runs a function while the block runs, and raises in the block's thread what it raised."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function, self._error = function, None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._function()
        except BaseException as error:  # noqa: BLE001 - raised again at the end of the block
            self._error = error

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error


def test_attempts_have_the_causes_of_local_ones(executor: RayExecutor, tmp_path: Path) -> None:
    assert executor.slots == 2
    faults: dict[str | None, tuple[Cause, str]] = {
        None: (Cause.DONE, ""),
        "raise": (Cause.ERROR, "ValueError"),
        "refuse": (Cause.REFUSED, "ColumnError"),
        "segfault": (Cause.CRASH, "SIGSEGV"),
        "exit": (Cause.CRASH, "exit code 3 without a result"),
    }
    attempts = [
        attempt("engine_tasks:write_number", tmp_path, number, number=number, fault=fault)
        for number, fault in enumerate(faults)
    ]
    outcomes = sorted(run_all(executor, attempts), key=lambda outcome: outcome.key)
    assert [(outcome.cause, outcome.error_type) for outcome in outcomes] == list(faults.values())
    assert all("secret" not in outcome.message for outcome in outcomes)
    assert outcomes[0].result is not None
    assert (tmp_path / outcomes[0].result.outputs[0].path).read_text() == "0"


def test_steps_write_the_bytes_of_one_machine(executor: RayExecutor, tmp_path: Path) -> None:
    markers = tmp_path / "markers"
    markers.mkdir()
    faults = {2: "segfault", 9: "raise"}  # once each; the driver retries them
    run(executor, tmp_path / "ray", engine_tasks.numbers(8, faults, str(markers)))
    local = LocalExecutor(1)
    run(local, tmp_path / "one", engine_tasks.numbers(8))
    local.close()

    def files(folder: Path) -> dict[str, bytes]:
        paths = (path for path in folder.rglob("*") if path.is_file() and "ledger" not in path.parts)
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    assert len(list(markers.iterdir())) == 2
    assert files(tmp_path / "ray") == files(tmp_path / "one")


def test_input_errors_of_tasks_reach_the_user(executor: RayExecutor, tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match="no column 'text'; it has 'body'"):
        run(executor, tmp_path, engine_tasks.numbers(1, faults={0: "refuse"}))


def test_attempts_larger_than_every_node_run(executor: RayExecutor, tmp_path: Path) -> None:
    large = replace(attempt("engine_tasks:write_number", tmp_path, number=1), cpus=999, memory_bytes=1 << 50)
    assert [outcome.cause for outcome in run_all(executor, [large])] == [Cause.DONE]


def test_steps_use_every_node(executor: RayExecutor, tmp_path: Path) -> None:
    gate, root = tmp_path / "gate", tmp_path / "root"
    root.mkdir()
    second = RayExecutor("auto", str(root))
    assert len(list((root / ".probe").iterdir())) == 1

    def release() -> None:
        assert wait_until(lambda: ray_tasks.started(gate) == 2, 60), "not both nodes run a task"
        gate.touch()

    with InBackground(release):
        manifest = run(second, root / "step", ray_tasks.gated_numbers(6, gate))
    second.close()
    assert len(manifest.details["raylets"]) == 2
    assert manifest.totals.rows == 6
    assert not (root / ".probe").exists()


def test_roots_may_be_in_an_object_store(executor: RayExecutor) -> None:
    with s3_root() as root:
        second = RayExecutor("auto", root)
        run(second, f"{root}/step", ray_tasks.gated_numbers(6))
        second.close()
        files = [info.path for info in urls.listing(root) if "ledger" not in info.path]
    assert files == ["step/manifest.json", *(f"step/number-{number:03d}.txt" for number in range(6))]


def test_a_lost_node_costs_only_its_attempts(
    executor: RayExecutor, shared_cluster: SharedCluster, tmp_path: Path
) -> None:
    gate, lost, names = tmp_path / "gate", [], []

    def lose() -> None:
        assert wait_until(lambda: attempts_on(shared_cluster.second), 60), "the second node got nothing to do"
        assert wait_until(lambda: ray_tasks.started(gate) == 2, 60)
        names.extend(phase for phase, _ in attempts_on(shared_cluster.second))
        lost.extend(shared_cluster.lose_second())
        gate.touch()

    try:
        with InBackground(lose):
            manifest = run(executor, tmp_path / "step", ray_tasks.gated_numbers(6, gate))
        assert wait_until(lambda: all(map(ended, lost)), 60)
    finally:
        shared_cluster.restore_second()
    assert (manifest.totals.rows, names) == (6, ["where"]), "Ray shows attempts by their phase"
    lines = [line for line in read_ledger(str(tmp_path / "step")) if isinstance(line, AttemptLine)]
    assert sum(line.cause is Cause.DONE for line in lines) == 6
    messages = [line.message for line in lines if line.cause is not Cause.DONE]
    assert {line.cause for line in lines} == {Cause.DONE, Cause.INFRASTRUCTURE}, messages
    assert re.match(r"its (node|Ray worker process) died.*\((NodeDied|WorkerCrashed)Error: .*next: ", messages[0])


def test_a_cluster_without_cpus_ends_the_run(
    executor: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "choose", lambda nodes: Nodes())
    monkeypatch.setattr(backend, "NO_NODE_SECONDS", 0.5)
    monkeypatch.setattr(backend, "REFRESH_SECONDS", 0.1)
    second = RayExecutor("auto", str(tmp_path))
    try:
        assert second.slots == 1, "so that an autoscaler sees demand"
        with pytest.raises(StepFailedError, match=r"no node .* has had a CPU for .*; start a node with CPUs"):
            run(second, tmp_path / "step", ray_tasks.gated_numbers(1, tmp_path / "never"))
    finally:
        second.close()


@pytest.mark.soak
def test_a_real_cluster_without_cpus_ends_the_run(tmp_path: Path) -> None:
    with ray_cluster("--num-cpus", "0") as cluster:
        answer = cluster.drive(NO_CPUS, str(tmp_path))
        assert answer["exit"] == 1
        assert answer["message"].startswith("no node of the Ray cluster has had a CPU for")
        assert "start a node with CPUs" in answer["message"]


NO_CPUS = """
import json, sys
import datakit.engine.ray_backend.executor as backend
from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler.driver import run_step
from datakit.errors import DatakitError
from tests.support.engine import engine_tasks

backend.NO_NODE_SECONDS = 3.0  # instead of a quarter of an hour
executor = backend.RayExecutor(sys.argv[1], sys.argv[2])
step, plan = engine_tasks.number_step(sys.argv[2] + "/step"), engine_tasks.numbers(1)
try:
    run_step(step, plan, lambda: executor, Observer())
except DatakitError as error:
    print(json.dumps({"exit": error.exit_code, "message": str(error)}))
executor.close()
"""
