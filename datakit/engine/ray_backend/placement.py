"""Decides to which node of a Ray cluster the driver sends an attempt.

Ray's scheduler on the driver's node learns only every 100 ms what other nodes have free, and it was observed to leave a
node without work for 2 to 4 s although attempts were waiting (docs/log.md). The driver learns within
2 ms that an attempt has ended, and normally has the cluster to itself. Therefore it keeps accounts of what its own
attempts occupy on each node, and sends each attempt to a node that has room, where it starts in about 5 ms. Ray still
enforces the requests for resources.

The accounts do not include other programs. They include an attempt whose node Ray has chosen once it has reported its
node (`disk_reports.py`). An attempt that does not begin on the chosen node is recalled, and Ray then
chooses its node (`executor.py`). A node on which an attempt was lost may be gone although Ray still lists it; for
SUSPECT_SECONDS, the driver sends no attempt there, but Ray may. This module does not import ray.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from enum import Enum, auto

from datakit.engine.ray_backend.nodes import Node, ResourceRequest

SUSPECT_SECONDS = 30.0  # by default, Ray takes up to this long to notice that a node is gone


class Choice(Enum):
    """An answer of `Accounts.choose` other than a node."""

    RAY = auto()  # Ray chooses the node
    LATER = auto()  # no node has room


class Accounts:
    """Counts the CPUs and the memory that the run's attempts occupy on each node. A node is identified by its id;
    attempts whose node Ray chooses are counted under None until they report their node.
    """

    def __init__(self) -> None:
        self._cpus, self._memory = Counter[str | None](), Counter[str | None]()
        self._suspect: dict[str, float] = {}  # until when, on the monotonic clock

    @property
    def cpus(self) -> int:
        """The number of CPUs that all attempts together occupy or wait for."""
        return self._cpus.total()

    def add(self, node: str | None, request: ResourceRequest) -> None:
        """Note that an attempt was sent."""
        self._cpus[node] += request.cpus
        self._memory[node] += request.memory

    def remove(self, node: str | None, request: ResourceRequest) -> None:
        """Note that an attempt has ended."""
        self._cpus[node] -= request.cpus
        self._memory[node] -= request.memory
        if not self._cpus[node]:  # otherwise, nodes that have left the cluster would stay in the accounts
            del self._cpus[node], self._memory[node]

    def suspect(self, node: str | None) -> None:
        """Note that an attempt was lost on this node."""
        if node is not None:
            self._suspect[node] = time.monotonic() + SUSPECT_SECONDS

    def choose(self, nodes: Sequence[Node], request: ResourceRequest) -> str | Choice:
        """Return the id of the node that has room for the request and, among several, the most free CPUs."""
        if self._cpus and self.cpus + request.cpus > int(sum(node["Resources"]["CPU"] for node in nodes)):
            return Choice.LATER
        now, found = time.monotonic(), self._with_room(nodes, request)
        trusted = [one for one in found if self._suspect.get(one[2], 0.0) <= now]
        if trusted:
            return max(trusted)[2]
        return Choice.RAY if found or not self._cpus else Choice.LATER

    def _with_room(self, nodes: Sequence[Node], request: ResourceRequest) -> list[tuple[float, float, str]]:
        """Return the free CPUs, the free memory and the id of each node that has room for the request."""
        found = list[tuple[float, float, str]]()
        for node in nodes:
            name, total = node["NodeID"], node["Resources"]
            cpus, memory = total["CPU"] - self._cpus[name], total.get("memory", 0) - self._memory[name]
            if cpus >= request.cpus and memory >= request.memory:
                found.append((cpus, memory, name))
        return found
