"""Attempts run on nodes without accelerators as long as there are any."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.engine.executor import Cause
from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.engine.observe.observer import Observer
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.engine.ray_backend.nodes import ResourceRequest, choose
from datakit.engine.scheduler.driver import run_step
from tests.support.engine import engine_tasks, ray_tasks
from tests.support.faults.cluster import RayCluster, SharedCluster, ray_cluster, raylet_of, wait_until


def node(name: str, alive: bool = True, **resources: float) -> dict[str, Any]:
    """Return a node as Ray describes it."""
    return {"NodeID": name, "Alive": alive, "Resources": resources}


@pytest.mark.parametrize(
    "accelerators", [{"GPU": 1.0}, {"TPU": 4.0}, {"neuron_cores": 2.0}, {"accelerator_type:H100": 1.0}]
)
def test_accelerator_nodes_are_used_only_alone(accelerators: dict[str, float]) -> None:
    costly, plain = node("a", True, CPU=64.0, memory=900.0, **accelerators), node("b", CPU=4.0, memory=100.0)
    nodes = choose([costly, plain, node("c", alive=False, CPU=8.0), node("d", CPU=0.0)])
    assert (nodes.used, nodes.avoided, nodes.sparing, nodes.cpus) == ((plain,), ("a",), True, 4)
    assert nodes.largest == (4, 100)
    alone = choose([costly])
    assert (alone.used, alone.avoided, alone.sparing, alone.cpus) == ((costly,), (), False, 64)


@given(cpus=st.integers(1, 10), memory=st.integers(1, 2000), exclusive=st.booleans())
def test_requests_are_enough_and_fit_on_the_largest_node(cpus: int, memory: int, exclusive: bool) -> None:
    nodes = choose([node("a", CPU=4.0, memory=800.0), node("b", CPU=2.0, memory=500.0)])
    request = nodes.request(cpus, memory, exclusive)
    assert request.cpus == min(cpus, 4)
    if exclusive and memory > 200 * request.cpus:
        assert request.memory == 800, "no other attempt fits beside it"
    else:
        assert request.memory == min(memory, 800)


def test_requests_before_any_node_is_known_are_exact() -> None:
    assert choose([]).request(3, 700, False) == ResourceRequest(3, 700)


def test_impossible_requests_are_recognised() -> None:
    nodes = choose([node("a", CPU=64.0, memory=900.0, GPU=1.0), node("b", CPU=4.0, memory=100.0)])
    assert nodes.can_satisfy(ResourceRequest(4, 100, ("a",)))
    assert not nodes.can_satisfy(ResourceRequest(5, 100, ("a",))), "the node with five CPUs has left"
    assert not nodes.can_satisfy(ResourceRequest(4, 101, ("a",)))
    alone = choose([node("a", CPU=64.0, memory=900.0, GPU=1.0)])
    assert not alone.can_satisfy(ResourceRequest(1, 1, ("a",)))
    assert nodes.can_satisfy(ResourceRequest(64, 900)), "sent when there was no other node"


def test_accelerator_nodes_that_join_a_run_are_spared(
    executor: RayExecutor, shared_cluster: SharedCluster, tmp_path: Path
) -> None:
    gate, joined = tmp_path / "gate", []

    def join() -> None:
        wait_until(lambda: ray_tasks.started(gate) == 2, 60)
        joined.append(shared_cluster.cluster.join("--num-cpus", "2", "--num-gpus", "1"))  # while attempts wait in Ray
        gate.touch()

    thread = threading.Thread(target=join)
    thread.start()
    step, plan = engine_tasks.number_step(str(tmp_path / "step")), ray_tasks.gated_numbers(8, gate)
    manifest = run_step(step, plan, lambda: executor, Observer())
    thread.join()
    try:
        assert executor.slots == 2, "the CPUs next to the accelerator do not count"
        assert raylet_of(joined[0]) not in manifest.details["raylets"]
        assert manifest.totals.rows == 8
        lines = [line for line in read_ledger(str(tmp_path / "step")) if isinstance(line, AttemptLine)]
        assert {line.cause for line in lines} == {Cause.DONE}
    finally:
        shared_cluster.cluster.kill(joined[0])


DRIVER = """
import json, sys
from datakit.engine.observe.observer import Observer
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.engine.scheduler.driver import run_step
from tests.support.engine import engine_tasks, ray_tasks

address, root, count, gate = sys.argv[1:]
executor = RayExecutor(address, root)
plan = ray_tasks.gated_numbers(int(count), gate)
manifest = run_step(engine_tasks.number_step(root + "/step"), plan, lambda: executor, Observer())
executor.close()
print(json.dumps({"raylets": manifest.details["raylets"], "rows": manifest.totals.rows}))
"""


def drive(cluster: RayCluster, root: Path, meanwhile: Callable[[], object]) -> dict[str, Any]:
    """Run a step of eight tasks; call `meanwhile` when the first has started, then let them all end."""
    gate = root / "gate"
    root.mkdir()

    def act() -> None:
        wait_until(lambda: ray_tasks.started(gate), 120)
        meanwhile()
        gate.touch()

    thread = threading.Thread(target=act)
    thread.start()
    answer = cluster.drive(DRIVER, str(root), "8", str(gate))
    thread.join()
    return answer


@pytest.mark.soak
def test_accelerator_nodes_replace_lost_plain_nodes(tmp_path: Path) -> None:
    with ray_cluster("--num-cpus", "1", "--num-gpus", "1") as cluster:
        (head,) = drive(cluster, tmp_path / "alone", lambda: None)["raylets"]
        plain = cluster.join("--num-cpus", "1")
        answer = drive(cluster, tmp_path / "spared", lambda: cluster.join("--num-cpus", "2", "--num-gpus", "1"))
        assert answer == {"raylets": [raylet_of(plain)], "rows": 8}
        answer = drive(cluster, tmp_path / "left", lambda: cluster.kill(plain))
        assert answer["rows"] == 8, "what waited for the lost node runs where there are CPUs"
        assert head in answer["raylets"] or len(answer["raylets"]) > 1
