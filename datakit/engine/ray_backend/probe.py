"""Asks every node whether it shares the root and our versions, before the first attempt: a second.

A node that dies meanwhile need not answer; one that lost the worker process is asked again. Nodes that join later are
asked when they get their first attempt (`worker.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from datakit.engine.ray_backend.agreement import Expected, NodeReport, require
from datakit.engine.ray_backend.connection import connection_errors
from datakit.engine.ray_backend.failures import describe, is_lasting
from datakit.engine.ray_backend.nodes import Node, name_of
from datakit.engine.task import decode, encode
from datakit.errors import InputError

TRAVELLING = ("AWS_", "DATAKIT_", "FSSPEC_", "HF_TOKEN")  # environment variables that storage needs on the nodes
ANSWER_SECONDS = 90.0  # Ray misses a worker process that died while it started after 60 s, and starts another then
TRIES, WAIT_SECONDS = 6, 1.0


def environment() -> dict[str, Any]:
    """What travels to the nodes: the variables that storage and our own code read."""
    return {"env_vars": {name: value for name, value in os.environ.items() if name.startswith(TRAVELLING)}}


def probe(look: Callable[[], Sequence[Node]], expected: Expected) -> None:
    """Ask the nodes that `look` finds. Raises RootError, InputError."""
    lost = _ask(look(), expected)
    for _ in range(TRIES - 1):
        if not lost:
            return
        time.sleep(WAIT_SECONDS)
        lost = _ask([node for node in look() if name_of(node) in lost], expected)
    if lost:
        raise InputError(f"{'; '.join(lost.values())} (asked {TRIES} times)")


def _ask(nodes: Sequence[Node], expected: Expected) -> dict[str, str]:
    """Which nodes died, or lost the worker process, before they could answer, and how."""
    lost: dict[str, str] = {}
    data, remote = encode(expected), ray.remote(num_cpus=0, max_retries=0, runtime_env=environment())(_prober())
    places = {
        remote.options(
            name="probe", scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(data): name_of(node)
        for node in nodes
    }
    with connection_errors():
        _, silent = ray.wait(list(places), num_returns=len(places), timeout=ANSWER_SECONDS) if places else ([], [])
    if silent:
        names = ", ".join(places[reference] for reference in silent)
        raise InputError(
            f"no worker process started within {ANSWER_SECONDS:.0f} s on node {names}; see Ray's logs there"
        )
    for reference, node in places.items():
        try:
            answer = ray.get(reference)
        except ray.exceptions.RayError as error:
            trouble = f"node {node} cannot run a task: {describe(error)}"
            if is_lasting(error):
                raise InputError(trouble) from error
            lost[node] = trouble
            continue
        if isinstance(answer, str):
            raise InputError(f"node {node} cannot import datakit ({answer}); install the same version on all nodes")
        require(expected, decode(answer, NodeReport), node)
    return lost


def _prober() -> Callable[[bytes], bytes | str]:
    """A function that Ray ships by value, so that it runs where datakit is not installed, too."""

    def look_around(data: bytes) -> bytes | str:
        try:
            from datakit.engine.ray_backend.agreement import Expected, examine
            from datakit.engine.task import decode, encode
        except ImportError as error:
            return str(error)
        return encode(examine(decode(data, Expected)))

    return look_around
