"""Asks every node, before the first attempt, whether it matches the driver.

The nodes must share the driver's root and have the same versions of Python and the libraries. Asking all nodes takes a
second. A node that dies before it answers is ignored; a node that loses its worker process is asked again. Nodes that
join later are checked when they get their first attempt (`worker.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from datakit.engine.ray_backend.agreement import Expected, NodeReport, require
from datakit.engine.ray_backend.connection import connection_errors
from datakit.engine.ray_backend.failures import describe, is_permanent
from datakit.engine.ray_backend.nodes import Node, describe_node
from datakit.engine.task import decode, encode
from datakit.errors import InputError, counted

ANSWER_SECONDS = 90.0  # Ray takes 60 s to notice that a worker process died while starting; it then starts another
TRIES, WAIT_SECONDS = 6, 1.0  # a short wait between tries, because Ray replaces a lost worker immediately


def probe(find_nodes: Callable[[], Sequence[Node]], expected: Expected, variables: bytes) -> None:
    """Check all nodes that `find_nodes` returns. Raises RootError or InputError if one does not match `expected`.

    variables: the encoded environment variables for the nodes.
    """
    unanswered = _ask(find_nodes(), expected, variables)
    for _ in range(TRIES - 1):
        if not unanswered:
            return
        time.sleep(WAIT_SECONDS)
        unanswered = _ask([node for node in find_nodes() if describe_node(node) in unanswered], expected, variables)
    if unanswered:
        raise InputError(f"{'; '.join(unanswered.values())} (asked {TRIES} times)")


def _ask(nodes: Sequence[Node], expected: Expected, variables: bytes) -> dict[str, str]:
    """Check the nodes. Return, keyed by node, the errors of nodes that died or lost their worker before answering."""
    unanswered: dict[str, str] = {}
    for reference, node in _send_probes(nodes, expected, variables).items():
        try:
            answer = ray.get(reference)
        except ray.exceptions.RayError as error:
            message = f"node {node} cannot run a task: {describe(error)}"
            if is_permanent(error):
                raise InputError(message) from error
            unanswered[node] = message
            continue
        if isinstance(answer, str):
            raise InputError(f"node {node} cannot import datakit ({answer}); install the same version on all nodes")
        require(expected, decode(answer, NodeReport), node)
    return unanswered


def _send_probes(nodes: Sequence[Node], expected: Expected, variables: bytes) -> dict[ray.ObjectRef, str]:
    """Start a probe on each node and wait until all have ended. Return the probes, each with its node's description."""
    data = encode(expected)
    remote = ray.remote(num_cpus=0, max_retries=0)(_probe_function())
    probes = {
        remote.options(
            name="probe", scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(data, variables): describe_node(node)
        for node in nodes
    }
    with connection_errors():
        _, silent = ray.wait(list(probes), num_returns=len(probes), timeout=ANSWER_SECONDS) if probes else ([], [])
    if silent:
        names = f"{counted(len(silent), 'node')}: {', '.join(probes[reference] for reference in silent)}"
        raise InputError(f"no worker process started within {ANSWER_SECONDS:.0f} s on {names}; see Ray's logs there")
    return probes


def _probe_function() -> Callable[[bytes, bytes], bytes | str]:
    """Return the function that examines a node. Ray ships it by value, so it also runs where datakit is missing."""

    def examine_node(data: bytes, variables: bytes) -> bytes | str:
        try:
            from datakit.engine.ray_backend.agreement import Expected, examine
            from datakit.engine.ray_backend.worker import adopt_variables
            from datakit.engine.task import decode, encode
        except ImportError as error:
            return str(error)
        adopt_variables(variables)
        return encode(examine(decode(data, Expected)))

    return examine_node
