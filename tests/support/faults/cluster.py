"""Real Ray clusters for tests, and their end: whatever is started carries a mark, and is killed by it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.paths import REPOSITORY
from tests.support.processes import ended, kill

MARK = "DATAKIT_TEST_CLUSTER"
TOKEN = "c0ffee" * 10
ROOT_OF_THE_CODE = str(REPOSITORY)


def processes_with(mark: str) -> list[psutil.Process]:
    """Every process that carries the mark in its environment, whoever its parent is by now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.pid != os.getpid():
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if not ended(process)]


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Whether `condition` came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@contextmanager
def marked() -> Iterator[str]:
    """A mark for everything that is started meanwhile; what is left at the end is killed."""
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        try:
            yield mark
        finally:
            kill(processes_with(mark))


@dataclass
class TwoNodes:
    """A cluster of two nodes with one slot each. The second one does not see what is below `private_root`.

    mark: what everything of it carries. start_second: another one like the second, such as after that was lost.
    """

    address: str
    environment: dict[str, str]
    second: psutil.Process
    private_root: Path
    mark: str
    start_second: Callable[[], psutil.Process]


@contextmanager
def two_nodes(root: Path, head_cpus: int = 1) -> Iterator[TwoNodes]:
    """Two `ray start`s with token authentication; the second in a mount namespace with an empty disk over `root`."""
    with marked() as mark:
        folder = Path(f"/tmp/{mark[:8]}")  # short: Ray puts sockets there
        folder.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        address = f"{_own_address()}:{port}"
        environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "PYTHONPATH": ROOT_OF_THE_CODE}
        environment |= {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "3"}
        environment |= {"RAY_worker_register_timeout_seconds": "20"}  # until a worker that died as it started is missed
        environment |= {"RAY_worker_niceness": "0"}  # by default 15, and on a busy machine hardly a turn
        common = ["--object-store-memory", str(80 << 20), "--disable-usage-stats", "--block"]
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start"]
        head = [*ray, "--head", "--port", str(port), "--temp-dir", str(folder), "--include-dashboard", "false", *common]
        head += ["--num-cpus", str(head_cpus)]
        hide = 'mount -t tmpfs tmpfs "$1" || exit 77; shift; exec "$@"'
        second = [*_unshare(), "sh", "-c", hide, "sh", str(root), *ray, "--address", address, *common]
        second += ["--num-cpus", "1"]
        processes: list[subprocess.Popen[bytes]] = []

        def start(command: list[str]) -> psutil.Process:
            path = folder / f"{len(processes)}.log"
            with path.open("w") as log:
                processes.append(subprocess.Popen(command, env=os.environ | environment, stdout=log, stderr=log))
            started = wait_until(lambda: "runtime started" in path.read_text() or processes[-1].poll() is not None, 30)
            if processes[-1].poll() == 77:
                pytest.skip("no mount namespace can be made here, so a node cannot lack the root")
            assert started and processes[-1].poll() is None, path.read_text()
            return psutil.Process(processes[-1].pid)

        start(head)
        yield TwoNodes(address, environment, start(second), root, mark, lambda: start(second))
        kill(processes_with(mark))
        for process in processes:
            process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def family(node: psutil.Process) -> list[psutil.Process]:
    """All processes of a node: `ray start`, and what it has started; none where it is gone."""
    try:
        return [*node.children(recursive=True), node]
    except psutil.Error:
        return []


def attempts_on(node: psutil.Process) -> list[tuple[str, psutil.Process]]:
    """(phase, child) of every attempt that runs there: a fork server's copy of itself, below a Ray worker."""
    found = []
    members = {process.pid: process for process in family(node)}
    for process in members.values():
        try:
            server = members.get(process.ppid())
            worker = members.get(server.ppid()) if server else None
            title = worker.cmdline()[0] if worker else ""
            if (
                server
                and title.startswith("ray::")
                and "datakit.engine.worker.forkserver" in " ".join(server.cmdline())
            ):
                found.append((title.split()[-1].removeprefix("ray::"), process))  # "ray::dedup verify"
        except (psutil.Error, IndexError):
            continue
    return found


def _own_address() -> str:
    import ray.util

    return ray.util.get_node_ip_address()


def _unshare() -> list[str]:
    return ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
