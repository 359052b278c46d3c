"""Starts real Ray clusters on this machine for tests. Everything started carries a mark and is killed by it.

with ray_cluster("--num-cpus", "0") as cluster:            # a head
    node = cluster.join("--num-cpus", "1")                 # nodes join and die when the test says so
    hiding = cluster.join("--num-cpus", "1", hidden=root)  # a node that does not see the files below `root`
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from datakit.engine.worker import memory_watcher
from tests.support.paths import REPOSITORY
from tests.support.processes import ended, kill

MARK = "DATAKIT_TEST_CLUSTER"
ROOT_OF_THE_CODE = str(REPOSITORY)
START_SECONDS = 120
NOT_PERMITTED = 77
OPTIONS = ("--object-store-memory", str(80 << 20), "--disable-usage-stats", "--block")
QUICK_REFUSAL = {"RAY_NUM_REDIS_GET_RETRIES": "2"}  # a driver without the token gives up after 2 s instead of 20
SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "PYTHONPATH": ROOT_OF_THE_CODE,
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_worker_register_timeout_seconds": "20",  # until Ray notices that a worker died while starting
    "RAY_worker_niceness": "0",  # the default of 15 starves workers on a busy machine
}


def token() -> str:
    """Return the token of this process's private clusters: Ray keeps the first token that a process uses."""
    from datakit.engine.ray_backend import agreement

    return agreement._TOKEN


def free_port() -> int:
    """Return a free port above those that Ray gives to its workers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def processes_with(mark: str) -> list[psutil.Process]:
    """Return every process with the mark in its environment, whatever its parent."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.pid != os.getpid():
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if not ended(process)]


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Poll until `condition` is true; returns False if it is not within `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@contextmanager
def marked() -> Iterator[str]:
    """Mark every process started in the block, and kill those that remain at its end."""
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        try:
            yield mark
        finally:
            kill(processes_with(mark))


@dataclass
class RayCluster:
    """A running cluster. A driver needs `environment` to join it at `address`."""

    address: str
    environment: dict[str, str]
    mark: str
    folder: Path
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_head(self, *options: str) -> psutil.Process:
        """Start the head, or another in its place after it was killed."""
        port = self.address.rpartition(":")[2]
        return self._start(["--head", "--port", port, "--temp-dir", str(self.folder), *options])

    def join(
        self, *options: str, hidden: Path | None = None, variables: dict[str, str] | None = None
    ) -> psutil.Process:
        """Add a node. hidden: a folder over which it sees an empty disk; skips the test if mounts are not permitted."""
        prefix: list[str] = []
        if hidden is not None:
            hide = f'mount -t tmpfs tmpfs "$1" || exit {NOT_PERMITTED}; shift; exec "$@"'
            prefix = [*_unshare(), "sh", "-c", hide, "sh", str(hidden)]
        return self._start(["--address", self.address, *options], prefix, variables)

    def drive(self, program: str, *arguments: str, cwd: Path | str | None = None, **variables: str) -> dict[str, Any]:
        """Run a Python program with the address and `arguments`; returns the JSON of its last line."""
        command = [sys.executable, "-P", "-c", program, self.address, *arguments]
        environment = os.environ | self.environment | variables
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.stdout, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def kill(self, node: psutil.Process | None = None) -> None:
        """Kill a node with everything that runs on it, or the whole cluster."""
        nodes = [psutil.Process(process.pid) for process in self._started if process.poll() is None]
        for victim in nodes if node is None else [node]:
            kill(family(victim))

    def end(self) -> None:
        """Kill everything that carries the mark, and remove the cluster's files."""
        kill(processes_with(self.mark))
        for process in self._started:
            process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(
        self, options: list[str], prefix: list[str] | None = None, variables: dict[str, str] | None = None
    ) -> psutil.Process:
        log = self.folder.with_suffix(f".{len(self._started)}.log")
        command = [*(prefix or []), sys.executable, "-m", "ray.scripts.scripts", "start", *options, *OPTIONS]
        environment = os.environ | self.environment | (variables or {}) | {MARK: self.mark}
        with log.open("w") as file:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        self._started.append(process)
        started = wait_until(lambda: "runtime started" in log.read_text() or process.poll() is not None, START_SECONDS)
        text = log.read_text()
        log.unlink()
        if process.poll() == NOT_PERMITTED:
            pytest.skip("no mount namespace is permitted here, so a node cannot lack the root")
        assert started and process.poll() is None, text
        return psutil.Process(process.pid)


@contextmanager
def ray_cluster(*options: str, dashboard: bool = False, **variables: str) -> Iterator[RayCluster]:
    """Start a head with these options of `ray start` and these environment variables."""
    from ray.util import get_node_ip_address

    mark = uuid.uuid4().hex
    folder = Path(f"/tmp/{mark[:8]}")  # short, because Ray puts Unix sockets there
    environment = SETTINGS | {"RAY_AUTH_TOKEN": token()} | variables
    cluster = RayCluster(f"{get_node_ip_address()}:{free_port()}", environment, mark, folder)
    try:
        cluster.start_head("--include-dashboard", str(dashboard).lower(), *options)
        yield cluster
    finally:
        cluster.end()


@dataclass
class TwoNodes:
    """A cluster of two nodes with one slot each. The second one does not see what is below `private_root`.

    start_second: adds another node like the second, for example after that was lost.
    """

    address: str
    environment: dict[str, str]
    second: psutil.Process
    private_root: Path
    mark: str
    start_second: Callable[[], psutil.Process]


@contextmanager
def two_nodes(root: Path, head_cpus: int = 1) -> Iterator[TwoNodes]:
    """Start a head and a second node that sees an empty disk over `root`."""
    with ray_cluster("--num-cpus", str(head_cpus)) as cluster:

        def start_second() -> psutil.Process:
            return cluster.join("--num-cpus", "1", hidden=root)

        yield TwoNodes(cluster.address, cluster.environment, start_second(), root, cluster.mark, start_second)


@dataclass
class SharedCluster:
    """The cluster of all tests that leave it as they found it: two nodes with one slot each.

    The second node does not see what is below `private_root`. metrics: the port of the head's metrics endpoint.
    """

    cluster: RayCluster
    second: psutil.Process
    private_root: Path
    metrics: int

    def lose_second(self) -> list[psutil.Process]:
        """Kill the second node; returns its processes."""
        processes = family(self.second)
        kill(processes)
        return processes

    def restore_second(self) -> None:
        """Start the second node again."""
        self.second = self.cluster.join("--num-cpus", "1", hidden=self.private_root)


def family(node: psutil.Process) -> list[psutil.Process]:
    """Return all processes of a node: `ray start` and what it has started; none if it is gone."""
    try:
        return [*node.children(recursive=True), node]
    except psutil.Error:
        return []


def raylet_of(node: psutil.Process) -> int:
    """Return the process id by which tasks know their node."""
    return next(process.pid for process in node.children(recursive=True) if process.name() == "raylet")


def attempts_on(node: psutil.Process) -> list[tuple[str, psutil.Process]]:
    """Return (phase, child) of every attempt running on a node: three forks below a Ray worker."""
    found = []
    members = {process.pid: process for process in family(node)}
    for process in members.values():
        try:
            server = members.get(process.ppid())
            template = members.get(server.ppid()) if server else None
            worker = members.get(template.ppid()) if template else None
            title = worker.cmdline()[0] if worker else ""
            if (
                server
                and title.startswith("ray::")
                and "datakit.engine.worker.forkserver" in " ".join(server.cmdline())
                and process.name() != memory_watcher.PROCESS_NAME.decode()
            ):
                found.append((title.split()[-1].removeprefix("ray::"), process))  # "ray::dedup verify"
        except (psutil.Error, IndexError):
            continue
    return found


def _unshare() -> list[str]:
    return ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
