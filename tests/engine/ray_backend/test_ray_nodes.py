"""Which nodes of a cluster run our attempts: none with accelerators, as long as others are there."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("datakit[ray] is not installed", allow_module_level=True)

from datakit.engine.ray_backend.nodes import Ask, choose
from tests.engine.ray_backend.test_ray import driver_command, run_driver
from tests.support.faults.cluster import wait_until
from tests.support.faults.ray_head import RayHead, ray_head, raylet_of

pytestmark = pytest.mark.ray


def node(name: str, alive: bool = True, **resources: float) -> dict[str, Any]:
    """A node as Ray describes it."""
    return {"NodeID": name, "Alive": alive, "Resources": resources}


@pytest.mark.parametrize(
    "accelerators", [{"GPU": 1.0}, {"TPU": 4.0}, {"neuron_cores": 2.0}, {"accelerator_type:H100": 1.0}]
)
def test_nodes_with_accelerators_are_left_alone_while_there_are_others(accelerators: dict[str, float]) -> None:
    costly, plain = node("a", True, CPU=64.0, memory=900.0, **accelerators), node("b", CPU=4.0, memory=100.0)
    nodes = choose([costly, plain, node("c", alive=False, CPU=8.0), node("d", CPU=0.0)])
    assert (nodes.used, nodes.avoided, nodes.sparing, nodes.cpus) == ((plain,), ("a",), True, 4)
    assert nodes.largest("memory") == 100
    alone = choose([costly])
    assert (alone.used, alone.avoided, alone.sparing, alone.cpus) == ((costly,), (), False, 64)


def test_what_no_node_can_ever_run_is_seen() -> None:
    nodes = choose([node("a", CPU=64.0, memory=900.0, GPU=1.0), node("b", CPU=4.0, memory=100.0)])
    assert nodes.can_give(Ask(4, 100, ("a",)))
    assert not nodes.can_give(Ask(5, 100, ("a",))), "the node that had five CPUs has left"
    assert not nodes.can_give(Ask(4, 101, ("a",)))
    assert not choose([node("a", CPU=64.0, memory=900.0, GPU=1.0)]).can_give(Ask(1, 1, ("a",)))
    assert nodes.can_give(Ask(64, 900)), "it was sent when there was no other node"


class Driver:
    """A run of a step whose tasks say where they were."""

    def __init__(self, cluster: RayHead, root: Path, tasks: int, seconds: float) -> None:
        root.mkdir()
        command = driver_command(cluster.address, root, tasks, seconds)
        environment = os.environ | cluster.environment
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.slots = json.loads(self._process.stdout.readline())["slots"]
        self._step = root / "step"

    def wait_for(self, files: int) -> None:
        """Until so many tasks have written theirs."""
        assert wait_until(lambda: len(list(self._step.glob("number-*.txt"))) >= files, 60), "nothing happens"

    def end(self) -> dict[str, Any]:
        """Its last line."""
        (line,) = self._process.communicate(timeout=90)[0].splitlines()
        return json.loads(line)


def test_no_attempt_runs_where_accelerators_are_whenever_they_join(tmp_path: Path) -> None:
    with ray_head("--num-cpus", "1", "--num-gpus", "1") as cluster:
        (head,) = run_driver(cluster.address, tmp_path, cluster.environment, 2, 0.0)["raylets"]  # nothing else is there

        plain = cluster.join("--num-cpus", "1")
        driver = Driver(cluster, tmp_path / "spared", 12, 0.5)
        assert driver.slots == 1, "the CPU beside the accelerator does not count"
        driver.wait_for(1)
        cluster.join("--num-cpus", "2", "--num-gpus", "1")  # while attempts wait in Ray
        answer = driver.end()
        assert answer["raylets"] == [raylet_of(plain)]
        assert (answer["rows"], set(answer["causes"]) - {None}) == (12, {"done"})

        driver = Driver(cluster, tmp_path / "left", 12, 0.5)
        driver.wait_for(1)
        cluster.kill(plain)
        answer = driver.end()
        assert answer["rows"] == 12, "what waited for the node that left runs where there are CPUs"
        assert set(answer["raylets"]) >= {head} or len(answer["raylets"]) > 1
        assert set(answer["causes"]) - {None} <= {"done", "infrastructure"}
