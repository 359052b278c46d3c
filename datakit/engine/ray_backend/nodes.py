"""Decides which nodes of a cluster a run uses: nodes with accelerators only if no other node has CPUs.

Nodes with accelerators are not used while any other node has CPUs, because a datakit task could deprive a training
job of its CPUs for an hour. If all nodes have accelerators (as on a single workstation with a GPU), they are used. A
node started with `--num-cpus 0` never runs a task.

Nodes are excluded by id, because every node carries its id as a label, whereas the accelerator type is a label only if
Ray itself has detected the device. An attempt already waiting in Ray cannot exclude a node that joins later. Therefore
a worker process checks its own node before it starts an attempt (`worker.py`), and returns the attempt if the node must
not be used. This module does not import ray.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

ACCELERATORS = ("GPU", "TPU", "HPU", "NPU", "TTNPU", "RBLN", "FURIOSA", "MBLT", "neuron_cores")  # Ray's resource names
ACCELERATOR_TYPE = "accelerator_type:"  # prefix of a resource that is named after an accelerator's model
ID_LABEL = "ray.io/node-id"

Node = Mapping[str, Any]


@dataclass(frozen=True)
class ResourceRequest:
    """The resources that an attempt requests from Ray. avoided: ids of nodes where the attempt must not run."""

    cpus: int
    memory: int
    avoided: tuple[str, ...] = ()

    def options(self) -> dict[str, Any]:
        """Return this request as options of a Ray remote function whose node Ray chooses."""
        selector = {"label_selector": {ID_LABEL: f"!in({','.join(self.avoided)})"}} if self.avoided else {}
        return {"num_cpus": self.cpus, "memory": self.memory, **selector}


@dataclass(frozen=True)
class Nodes:
    """All live nodes with CPUs, as `ray.nodes()` describes them, and those of them that the run uses. `avoided` holds
    the ids of the live nodes that are not used. `sparing` is True if nodes with accelerators must not be used,
    including nodes that join later.
    """

    alive: tuple[Node, ...] = ()
    used: tuple[Node, ...] = ()
    avoided: tuple[str, ...] = ()
    sparing: bool = False

    @cached_property
    def cpus(self) -> int:
        """The total number of CPUs of the nodes in use."""
        return int(sum(node["Resources"]["CPU"] for node in self.used))

    @cached_property
    def largest(self) -> tuple[int, int]:
        """The largest number of CPUs and the largest memory that any one node in use has; 0 if no node is in use."""
        cpus, memory = ([node["Resources"].get(name, 0) for node in self.used] for name in ("CPU", "memory"))
        return int(max(cpus, default=0)), int(max(memory, default=0))

    def request(self, cpus: int, memory: int, exclusive: bool) -> ResourceRequest:
        """Return the resources to request for an attempt that needs this: no more CPUs and no more memory than the
        largest node has.

        An exclusive attempt, which must run alone, requests all of that node's memory. This keeps out all other
        attempts, since each of them requests some memory. An attempt need not run alone if the fraction of the node's
        memory that it needs is at most the fraction of the node's CPUs that it needs.
        """
        most_cpus, most_memory = self.largest
        cpus = min(cpus, most_cpus or cpus)
        if exclusive and memory * most_cpus > cpus * most_memory:
            return ResourceRequest(cpus, most_memory, self.avoided)
        return ResourceRequest(cpus, min(memory, most_memory or memory), self.avoided)

    def can_satisfy(self, request: ResourceRequest) -> bool:
        """Return True if some node, once idle, could satisfy the request."""
        return any(
            node["Resources"]["CPU"] >= request.cpus
            and node["Resources"].get("memory", 0) >= request.memory
            and node["NodeID"] not in request.avoided
            for node in self.alive
        )


def choose(nodes: Iterable[Node]) -> Nodes:
    """Choose, among the live nodes with CPUs, those without accelerators, or all of them if all have accelerators."""
    alive = tuple(node for node in nodes if node["Alive"] and node["Resources"].get("CPU", 0) >= 1)
    plain = tuple(node for node in alive if not has_accelerators(node))
    if not plain:
        return Nodes(alive, alive)
    avoided = tuple(sorted(node["NodeID"] for node in alive if has_accelerators(node)))
    return Nodes(alive, plain, avoided, sparing=True)


def has_accelerators(node: Node) -> bool:
    """Return True if the node was started with accelerators."""
    resources = node["Resources"]
    return any(
        resources[name] > 0 and (name in ACCELERATORS or name.startswith(ACCELERATOR_TYPE)) for name in resources
    )


def describe_node(node: Node) -> str:
    """Return a node's name for messages: host name, address and short id."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:8]})"
