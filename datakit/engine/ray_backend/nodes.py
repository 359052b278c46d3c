"""Which nodes of a cluster a run uses, and what the biggest of them has.

Nodes with accelerators are left alone while any other node has CPUs: a task of ours there could keep a training from
its CPUs for an hour. Where all nodes have accelerators (a workstation with a GPU) they are used: nothing else is there.
A node that never is to run our tasks is started with `--num-cpus 0`.

They are avoided by the label that every node carries, its id: the type of accelerator is a label only where Ray finds
the device by itself. A node that joins while attempts wait in Ray is in none of their selectors, so the worker there
looks once more before it begins (`worker.py`) and hands the attempt back. This module does not import ray.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ACCELERATORS = ("GPU", "TPU", "HPU", "NPU", "TTNPU", "RBLN", "FURIOSA", "MBLT", "neuron_cores")  # Ray's names of them
ACCELERATOR_TYPE = "accelerator_type:"  # the beginning of a resource that names a model
ID_LABEL = "ray.io/node-id"

Node = Mapping[str, Any]


@dataclass(frozen=True)
class Ask:
    """What an attempt asks Ray for. avoided: the ids of nodes where it must not run."""

    cpus: int
    memory: int
    avoided: tuple[str, ...] = ()

    def options(self) -> dict[str, Any]:
        """The same in Ray's words."""
        selector = {"label_selector": {ID_LABEL: f"!in({','.join(self.avoided)})"}} if self.avoided else {}
        return {"num_cpus": self.cpus, "memory": self.memory, **selector}


@dataclass(frozen=True)
class Nodes:
    """All living nodes with CPUs, as `ray.nodes()` describes them, and those of them in use.

    avoided: the ids of the others. sparing: whether nodes with accelerators are left alone.
    """

    alive: tuple[Node, ...] = ()
    used: tuple[Node, ...] = ()
    avoided: tuple[str, ...] = ()
    sparing: bool = False

    @property
    def cpus(self) -> int:
        """Of all nodes in use."""
        return int(sum(node["Resources"]["CPU"] for node in self.used))

    def largest(self, resource: str) -> int:
        """The most that one of them has; 0 where there is none."""
        return int(max((node["Resources"].get(resource, 0) for node in self.used), default=0))

    def can_give(self, ask: Ask) -> bool:
        """Whether a node will ever have room for it, once what runs there has ended."""
        return any(
            node["Resources"]["CPU"] >= ask.cpus
            and node["Resources"].get("memory", 0) >= ask.memory
            and node["NodeID"] not in ask.avoided
            for node in self.alive
        )


def choose(nodes: Iterable[Node]) -> Nodes:
    """Which of all nodes to use: those that live and have CPUs, without accelerators where there are such."""
    alive = tuple(node for node in nodes if node["Alive"] and node["Resources"].get("CPU", 0) >= 1)
    plain = tuple(node for node in alive if not has_accelerators(node))
    if not plain:
        return Nodes(alive, alive)
    avoided = tuple(sorted(node["NodeID"] for node in alive if has_accelerators(node)))
    return Nodes(alive, plain, avoided, sparing=True)


def has_accelerators(node: Node) -> bool:
    """Whether it was started with any."""
    resources = node["Resources"]
    return any(
        resources[name] > 0 and (name in ACCELERATORS or name.startswith(ACCELERATOR_TYPE)) for name in resources
    )


def name_of(node: Node) -> str:
    """A node as messages name it."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:8]})"
