"""A real Ray cluster of any shape: a head as the test wants it, nodes that join when it says so, on this machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support.faults.cluster import ROOT_OF_THE_CODE, TOKEN, marked, processes_with, wait_until
from tests.support.processes import kill

START_SECONDS = 60
QUICK_TO_NOTICE = {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "3"}
COMMON = ("--object-store-memory", str(80 << 20), "--disable-usage-stats", "--block")


def free_port() -> int:
    """A port that nobody has now, above those that Ray gives to its workers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class RayHead:
    """A cluster that is there: `environment` is what a driver needs to join it at `address`."""

    address: str
    environment: dict[str, str]
    mark: str
    folder: Path
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_head(self, *options: str) -> psutil.Process:
        """The first node; or another in its place, after that was killed."""
        port = self.address.rpartition(":")[2]
        return self._start("--head", "--port", port, "--temp-dir", str(self.folder), *options)

    def join(self, *options: str) -> psutil.Process:
        """One more node."""
        return self._start("--address", self.address, *options)

    def kill(self, node: psutil.Process | None = None) -> None:
        """Kill a node with all that runs on it; without one, the whole cluster."""
        nodes = [psutil.Process(process.pid) for process in self._started if process.poll() is None]
        for victim in nodes if node is None else [node]:
            kill([*victim.children(recursive=True), victim])

    def _start(self, *options: str) -> psutil.Process:
        log = self.folder.with_suffix(f".{len(self._started)}.log")
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, *COMMON]
        with log.open("w") as file:
            process = subprocess.Popen(command, env=os.environ | self.environment, stdout=file, stderr=file)
        self._started.append(process)
        wait_until(lambda: "runtime started" in log.read_text() or process.poll() is not None, START_SECONDS)
        assert process.poll() is None, log.read_text()
        log.unlink()
        return psutil.Process(process.pid)

    def reap(self) -> None:
        """Wait for what was killed."""
        for process in self._started:
            process.wait(10)


@contextmanager
def ray_head(*options: str, dashboard: bool = False, **variables: str) -> Iterator[RayHead]:
    """A head node, with `options` of `ray start` and environment variables."""
    from ray.util import get_node_ip_address

    with marked() as mark:
        environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "PYTHONPATH": ROOT_OF_THE_CODE}
        folder = Path(f"/tmp/{mark[:8]}")  # short: Ray puts sockets there
        environment |= QUICK_TO_NOTICE | variables
        head = RayHead(f"{get_node_ip_address()}:{free_port()}", environment, mark, folder)
        try:
            head.start_head("--include-dashboard", str(dashboard).lower(), *options)
            yield head
        finally:
            kill(processes_with(mark))
            head.reap()
            shutil.rmtree(folder, ignore_errors=True)


def raylet_of(node: psutil.Process) -> int:
    """The process id by which tasks know their node."""
    return next(process.pid for process in node.children() if process.name() == "raylet")
