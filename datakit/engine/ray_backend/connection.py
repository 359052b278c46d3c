"""Joins a running Ray cluster or starts a private one; raises an error if the connection or the head node is lost.

If the head node has not answered for a minute, Ray ends the process with exit code 1 and one line of output, but
without an exception. Therefore the executor checks every 2 seconds whether the head node is listening (which takes 0.2
ms). If not, the executor gives the head node time to come back; if the head node stays silent, the executor ends the
run with a clear message before Ray would end the process. The address `auto` is resolved before Ray is called, since
Ray takes minutes to notice that an address file names a dead cluster.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import ray
import ray.exceptions
from ray.job_config import JobConfig

from datakit.engine.ray_backend.agreement import (
    AUTO_REMEDY,
    CONNECT_SECONDS,
    assert_reachable,
    auto_address,
    private_token,
)
from datakit.engine.ray_backend.failures import describe, first_line
from datakit.engine.ray_backend.nodes import describe_node
from datakit.engine.worker.memory import usable_memory
from datakit.errors import StepFailedError, UsageError
from datakit.storage.stale_files import RAY, remove_dead_scratch, scratch_directory

LOCAL, AUTO = "local", "auto"
OBJECT_STORE_BYTES = 80 << 20  # Ray's minimum is 75 MiB; only tasks' results go through this store
# Ray ends the process if the head node has been silent for as many seconds as this variable says (60 by default).
RAY_TIMEOUT, RAY_TIMEOUT_SECONDS = "RAY_gcs_rpc_server_reconnect_timeout_s", 60.0
SHUTDOWN_SECONDS = 15.0  # reserved for leaving a cluster that does not answer, before Ray ends the process
TOKEN_ADVICE = (
    "if the cluster requires a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to its token; if it does not, "
    "unset both and remove ~/.ray/auth_token"
)
RESUME_ADVICE = "then run again: finished work is kept"


class Head:
    """The head node of the joined cluster, and this process's own node, through which all requests go."""

    def __init__(self) -> None:
        """Ask Ray for the head node's address and the id of this process's own node."""
        self.address: str = ray.get_runtime_context().gcs_address
        self._own = ray.get_runtime_context().get_node_id()
        self._silent_since: float | None = None
        ray_timeout = float(os.environ.get(RAY_TIMEOUT, RAY_TIMEOUT_SECONDS))
        self._timeout = max(ray_timeout / 3, ray_timeout - SHUTDOWN_SECONDS)

    def answers(self) -> bool:
        """Return True if the head node is listening. Raises StepFailedError if it has been silent for too long."""
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            return self._note_silence(error)
        self._silent_since = None
        return True

    def nodes(self) -> list[dict[str, Any]]:
        """Return Ray's list of nodes. Raises StepFailedError if this process's node is dead, because Ray
        would otherwise wait forever.
        """
        with connection_errors():
            nodes = ray.nodes()
        own = next((node for node in nodes if node["NodeID"] == self._own and not node["Alive"]), None)
        if own is None:
            return nodes
        raise StepFailedError(
            f"the node through which this run talks to Ray ({describe_node(own)}) has left the cluster; start Ray "
            f"there again, or use another machine of the cluster; {RESUME_ADVICE}"
        )

    def _note_silence(self, error: OSError) -> bool:
        self._silent_since = self._silent_since or time.monotonic()
        silent = time.monotonic() - self._silent_since
        if silent < self._timeout:
            return False
        raise StepFailedError(
            f"the head node of the Ray cluster ({self.address}) has not answered for {silent:.0f} s ({error}); start "
            f"it again; {RESUME_ADVICE}"
        ) from error


@contextlib.contextmanager
def connected(address: str, workers: int | None) -> Iterator[None]:
    """Connect to the cluster at `address` for the `with` block, or use this process's existing connection. `workers` is
    the number of CPUs of a private cluster; by default, all usable CPUs. Raises UsageError.
    """
    if ray.is_initialized():
        if address == LOCAL:
            raise UsageError("this program is already connected to a Ray cluster; use the address 'auto' to run on it")
        yield
        return
    logging.getLogger("ray").setLevel(logging.ERROR)
    remove_dead_scratch()
    with _private_cluster(workers) if address == LOCAL else _joined(address):
        try:
            yield
        finally:
            ray.shutdown()  # besides leaving the cluster, this sends the run's last metrics


class _OwnImportPath(JobConfig):
    """Settings for Ray's workers. By default, Ray adds the driver's working directory to the workers' import path, so a
    file in that directory could replace an installed module. With these settings, Ray adds the directory only if it is
    also on the driver's import path.
    """

    def _serialize(self) -> str:
        own = {os.path.abspath(path) for path in sys.path if isinstance(path, str)}
        self._py_driver_sys_path = [path for path in self._py_driver_sys_path if path in own]
        return super()._serialize()


@contextlib.contextmanager
def _private_cluster(workers: int | None) -> Iterator[None]:
    """Start Ray on this machine for this process alone. The directory with Ray's files is removed at the end. Since
    Ray's processes may still be writing there as they exit, a later run removes what is left.
    """
    with scratch_directory(RAY) as directory, private_token():
        ray.init(
            address=LOCAL,
            job_config=_OwnImportPath(),
            num_cpus=workers or len(os.sched_getaffinity(0)),
            _memory=usable_memory(),
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=str(directory),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        yield


@contextlib.contextmanager
def _joined(address: str) -> Iterator[None]:
    """Join a running cluster. Raises UsageError if that fails."""
    address = _resolve_auto() if address == AUTO else address
    assert_reachable(address)
    try:
        ray.init(address=address, job_config=_OwnImportPath(), log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise UsageError(f"cannot join the Ray cluster at {address}: {first_line(error)}; {TOKEN_ADVICE}") from error
    yield


def _resolve_auto() -> str:
    try:
        return auto_address()
    except UsageError as error:
        raise UsageError(f"{error}; {AUTO_REMEDY}") from error


@contextlib.contextmanager
def connection_errors() -> Iterator[None]:
    """Raise StepFailedError in place of the exceptions with which Ray reports a lost connection."""
    try:
        yield
    except ray.exceptions.RayError as error:
        raise StepFailedError(f"lost the connection to the Ray cluster: {describe(error)}; {RESUME_ADVICE}") from error
