"""Runs a recipe on a cluster of two worker nodes with its root on S3, and kills a node in the middle of a phase.

    with workers(folder) as cluster, s3_root() as root:
        quiet = run(recipe, root, cluster)                  # its phases, and its tree
        ...
        shaken = run(recipe, other_root, cluster, {"sort": 2})   # kills the node of the second observed sort attempt

The head of the cluster has no CPUs, so every task runs on a node that may be lost, even the only task of a phase. A
node is lost while it runs an attempt of the phase: all its processes are stopped and, if the attempt is still running,
killed, so it cannot have reported a result. Another node joins in its place.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil

from datakit.storage import urls
from tests.support.faults.chaos import committed_twice
from tests.support.faults.cluster import ROOT_OF_THE_CODE, TwoNodes, attempts_on, family, two_nodes
from tests.support.processes import ended, kill
from tests.support.trees import tree

POLL_SECONDS = 0.01
DEADLINE_SECONDS = 900.0


@dataclass
class Workers:
    """A cluster, its worker nodes, and the attempts observed there."""

    cluster: TwoNodes
    nodes: list[psutil.Process]
    known: set[psutil.Process] = field(default_factory=set)

    def new_attempts(self, place: int) -> Iterator[tuple[str, psutil.Process]]:
        """Yield (phase, child) of each attempt observed on a node for the first time."""
        for phase, attempt in attempts_on(self.nodes[place]):
            if attempt not in self.known:
                self.known.add(attempt)
                yield phase, attempt

    def lose(self, place: int, attempt: psutil.Process) -> bool:
        """Kill the node if the attempt is still running; returns False, and lets it continue, if not."""
        everything = family(self.nodes[place])
        _signal(everything, signal.SIGSTOP)
        if ended(attempt):
            _signal(everything, signal.SIGCONT)
            return False
        kill(everything)
        self.nodes[place] = self.cluster.start_second()
        return True


@contextmanager
def workers(folder: Path) -> Iterator[Workers]:
    """Start a cluster with a head without CPUs and two worker nodes, which use `folder` exclusively."""
    with two_nodes(folder, head_cpus=0) as cluster:
        yield Workers(cluster, [cluster.second, cluster.start_second()])


@dataclass
class Run:
    """A run's events and its tree. phases: phase -> (stage, tasks), in order; seen: observed attempts by phase.

    struck: the phases in which a node was killed; lost: number of attempts lost with a node or a worker, by phase.
    """

    seconds: float = 0.0
    phases: dict[str, tuple[str, int]] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    struck: list[str] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    tree: dict[str, str] = field(default_factory=dict)

    def troubles(self, quiet: Run) -> list[str]:
        """List the differences from a quiet run, and killed nodes that cost no attempt."""
        names = self.tree.keys() | quiet.tree.keys()
        wrong = sorted(name for name in names if self.tree.get(name) != quiet.tree.get(name))
        found = [f"{len(wrong)} files differ, such as {wrong[:3]}"] if wrong else []
        return found + [f"no attempt was lost in phase {phase}" for phase in self.struck if not self.lost[phase]]


def run(recipe: Path, root: str, cluster: Workers, strikes: Mapping[str, int] | None = None) -> Run:
    """Run the recipe. strikes: phase -> the number of the observed attempt whose node is killed.

    Raises AssertionError, with the end of the driver's log, if the run fails.
    """
    command = [sys.executable, "-m", "datakit", "run", str(recipe), "--root", root, "--ray", cluster.cluster.address]
    environment, log = os.environ | cluster.cluster.environment, cluster.cluster.private_root / "driver.log"
    result, left, started = Run(), dict(strikes or {}), time.monotonic()
    with log.open("wb") as file:
        driver = subprocess.Popen(command, cwd=ROOT_OF_THE_CODE, env=environment, stdout=file, stderr=file)
    try:
        while driver.poll() is None and time.monotonic() - started < DEADLINE_SECONDS:
            for place in range(len(cluster.nodes)):
                _observe(cluster, place, left, result)
            time.sleep(POLL_SECONDS)
    finally:
        driver.kill()
        driver.wait()
    result.seconds = time.monotonic() - started
    assert driver.returncode == 0, f"the driver ended with {driver.returncode}: {log.read_text()[-2000:]}"
    _read_events(root, result)
    twice = committed_twice(root)
    assert not twice, f"tasks were committed twice with different bytes: {twice[:3]}"
    result.tree = tree(root)
    return result


def _observe(cluster: Workers, place: int, left: dict[str, int], result: Run) -> None:
    """Count the new attempts on a node; kill it if one of them is to be struck."""
    for phase, attempt in cluster.new_attempts(place):
        result.seen[phase] += 1
        if result.seen[phase] >= left.get(phase, sys.maxsize) and cluster.lose(place, attempt):
            del left[phase]
            result.struck.append(phase)
            return


def _read_events(root: str, result: Run) -> None:
    """Read phases and lost attempts from the run's event log; the ledgers do not list a lost batch."""
    (url,) = [info.url for info in urls.listing(root) if info.path.endswith("/events.jsonl")]
    for line in urls.read_bytes(url).splitlines():
        event: dict[str, Any] = orjson.loads(line)
        if event["event"] == "phase_started":
            stage, tasks = result.phases.get(event["phase"], (event["stage"], 0))
            result.phases[event["phase"]] = (stage, tasks + event["tasks"])
        elif event["event"] == "attempt_ended" and event["cause"] == "infrastructure":
            result.lost[event["phase"]] += 1


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
