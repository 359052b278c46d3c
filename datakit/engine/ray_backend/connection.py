"""The connection to a cluster: joining one, starting a private one, and seeing in time that its head is gone.

Ray ends a process whose head node has not answered for a minute: no exception, exit code 1, a line of its own. So the
head is asked every 2 seconds whether it still listens (0.2 ms), and the run ends with a message in time, while one
that comes back meanwhile is waited for. `auto` is looked up here, since Ray takes minutes to find that a cluster is
gone whose address file was left behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import ray
import ray.exceptions

from datakit.engine.ray_backend.agreement import (
    AUTO_REMEDY,
    CONNECT_SECONDS,
    assert_reachable,
    auto_address,
    private_token,
)
from datakit.engine.ray_backend.failures import describe, first_line
from datakit.engine.ray_backend.nodes import name_of
from datakit.engine.worker.memory_limits import MEMORY_SHARE, memory_limit
from datakit.errors import StepFailedError, UsageError

LOCAL, AUTO = "local", "auto"
OBJECT_STORE_BYTES = 80 << 20  # Ray's smallest: nothing but results goes through it
RAYS_PATIENCE, RAYS_PATIENCE_SECONDS = "RAY_gcs_rpc_server_reconnect_timeout_s", 60.0  # then it ends the process
LEAVING_SECONDS = 15.0  # what it takes at the most to leave a cluster that does not answer
TOKEN_ADVICE = (
    "if the cluster asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to its token; if it asks for none, "
    "unset both and remove ~/.ray/auth_token"
)
GONE = "run again when it is back: what is done is kept"


class Head:
    """Whether the cluster that this process has joined can still be talked to."""

    def __init__(self) -> None:
        """Asks Ray where its head is, and which node is our own: the one that our requests go through."""
        self.address = ray.get_runtime_context().gcs_address
        self._own = ray.get_runtime_context().get_node_id()
        self._silent_since: float | None = None
        rays = float(os.environ.get(RAYS_PATIENCE, RAYS_PATIENCE_SECONDS))
        self._patience = max(rays / 3, rays - LEAVING_SECONDS)

    def answers(self) -> bool:
        """Whether the head listens. Raises StepFailedError where it has not for a long time."""
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            return self._waited(error)
        self._silent_since = None
        return True

    def nodes(self) -> list[dict[str, Any]]:
        """All nodes that the head knows. Raises StepFailedError where our own has died: Ray would wait for ever."""
        with connection_errors():
            nodes = ray.nodes()
        own = next((node for node in nodes if node["NodeID"] == self._own and not node["Alive"]), None)
        if own is None:
            return nodes
        raise StepFailedError(
            f"the node through which this run talks to Ray ({name_of(own)}) has left the cluster; start Ray there "
            f"again, or run on another machine of the cluster; {GONE}"
        )

    def _waited(self, error: OSError) -> bool:
        self._silent_since = self._silent_since or time.monotonic()
        silent = time.monotonic() - self._silent_since
        if silent < self._patience:
            return False
        raise StepFailedError(
            f"the head node of the Ray cluster ({self.address}) has not answered for {silent:.0f} s ({error}); start "
            f"it again; {GONE}"
        ) from error


@contextlib.contextmanager
def connected(address: str, workers: int | None) -> Iterator[None]:
    """A connection to the cluster while the block runs; that of the caller's program, where it has one."""
    if ray.is_initialized():
        if address == LOCAL:
            raise UsageError("this program is connected to a Ray cluster already: join it with the address 'auto'")
        yield
        return
    logging.getLogger("ray").setLevel(logging.ERROR)
    with _private_cluster(workers) if address == LOCAL else _joined(address):
        try:
            yield
        finally:
            ray.shutdown()  # also sends the last metrics


@contextlib.contextmanager
def _private_cluster(workers: int | None) -> Iterator[None]:
    """Ray on this machine alone, for this process alone; its files are in one directory, which goes with it."""
    directory = tempfile.mkdtemp(prefix="datakit-ray-")
    try:
        with private_token():
            ray.init(
                address=LOCAL,
                num_cpus=workers or len(os.sched_getaffinity(0)),
                _memory=int(memory_limit() * MEMORY_SHARE),
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=directory,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            yield
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # the processes that write there may be a moment from their end


@contextlib.contextmanager
def _joined(address: str) -> Iterator[None]:
    """A cluster that somebody else runs. Raises UsageError where it cannot be joined."""
    address = _look_up() if address == AUTO else address
    assert_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise UsageError(f"cannot join the Ray cluster at {address}: {first_line(error)}; {TOKEN_ADVICE}") from error
    yield


def _look_up() -> str:
    try:
        return auto_address()
    except UsageError as error:
        raise UsageError(f"{error}; {AUTO_REMEDY}") from error


@contextlib.contextmanager
def connection_errors() -> Iterator[None]:
    """What Ray raises when it cannot be talked to, as ours."""
    try:
        yield
    except ray.exceptions.RayError as error:
        raise StepFailedError(f"the Ray cluster does not answer any more: {describe(error)}; {GONE}") from error
