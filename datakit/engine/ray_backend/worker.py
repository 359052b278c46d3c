"""Runs one attempt in a Ray worker process: first checks the node, then uses a fork server owned by the process.

Ray reuses its worker processes, so a fork server boots once per worker process, not once per attempt. The Ray worker
itself has many threads and never forks. When the Ray worker dies, its control socket closes, and the fork server kills
the children. The worker asks Ray once per process whether its node has accelerators.

Since a Ray worker runs one attempt at a time, it keeps at most one child for the next attempt, which usually comes at
once; otherwise the child ends after half a second to a second (`worker/handles/kept_children.py`). Ray does not count
what a kept child retains, at most 128 MiB.
"""

from __future__ import annotations

import os
from functools import cache

from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.ray_backend import node_environment
from datakit.engine.ray_backend.agreement import Expected, announce_compilation, examine, require
from datakit.engine.ray_backend.disk_reports import Reporter
from datakit.engine.ray_backend.nodes import has_accelerators
from datakit.engine.task import decode, encode
from datakit.engine.worker.forkserver_client import ForkServerPool
from datakit.engine.worker.handles.kept_children import KeptChildren, Seat
from datakit.engine.worker.run_attempt import run_attempt
from datakit.errors import DatakitError, InputError

_SERVERS = ForkServerPool()
_KEPT = KeptChildren()
_REPORTER = Reporter()
_CHECKED: set[bytes] = set()


def run_encoded_attempt(data: bytes, expected: bytes, sparing: bool, variables: bytes, key: str) -> bytes | None:
    """Run one attempt, given as msgpack; return its outcome as msgpack, or None if `sparing` is True and the node has
    accelerators. If the node does not match `expected`, an encoded Expected, the attempt is refused.

    variables: the encoded environment variables that the driver sends. key: the key of the attempt's disk reports.
    """
    if sparing and _has_accelerators():
        return None
    adopt_variables(variables)
    attempt = decode(data, Attempt)
    _SERVERS.on_compiling = lambda: announce_compilation(decode(expected, Expected))
    try:
        _check_once(expected)
        with _REPORTER.attempt(key):
            return encode(_run(attempt))
    except DatakitError as error:
        cause = Cause.REFUSED if isinstance(error, InputError) else Cause.INFRASTRUCTURE
        facts = {"message": str(error), "error_type": type(error).__name__, "node": os.uname().nodename}
        return encode(Outcome.of(attempt, cause, **facts))


def _run(attempt: Attempt) -> Outcome:
    seat = Seat(not attempt.own_child, _KEPT.take(attempt))
    _KEPT.end()  # a child of another kind
    try:
        return run_attempt(attempt, _SERVERS, report_written=_REPORTER.note, seat=seat)
    finally:
        if seat.child is not None:
            _KEPT.put(attempt, seat.child)


def adopt_variables(variables: bytes) -> None:
    """Set the environment variables that the driver sends. If they differ from those of the last attempt, stop the
    fork servers, and have the node checked again.
    """
    if node_environment.adopt(decode(variables, dict[str, str])):
        _KEPT.end()
        _SERVERS.close()
        _CHECKED.clear()


@cache
def _has_accelerators() -> bool:
    import ray

    own = ray.get_runtime_context().get_node_id()
    return any(node["NodeID"] == own and has_accelerators(node) for node in ray.nodes())


def _check_once(expected: bytes) -> None:
    if expected not in _CHECKED:
        wanted = decode(expected, Expected)
        require(wanted, examine(wanted), os.uname().nodename)
        _CHECKED.add(expected)
