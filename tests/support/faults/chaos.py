"""Runs recipes under random kills and faults and compares the result with an undisturbed run.

    quiet = Quiet.run(folder)                 # the recipe and its undisturbed tree
    report = run_round(quiet, folder / "1", seed=1)
    assert not report.troubles

The victims of `kill -9` are the processes a driver has started (children, fork servers, template processes), the driver
itself (which is restarted until the run is done), and, on a cluster, Ray workers, a raylet or a whole node.
`chaos_faults` describes the faults inside tasks. The time, victim and kind of each kill are random. A seed fixes the
choices, not the timing.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import psutil

from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.storage import urls
from datakit.storage.stale_files import remove_dead_scratch
from tests.support.faults import chaos_faults
from tests.support.faults.cluster import MARK, ROOT_OF_THE_CODE, TwoNodes, family, processes_with, wait_until
from tests.support.processes import kill
from tests.support.stdlib_shelf import write_shelf
from tests.support.trees import tree

WORKERS = 3
MOST_SECONDS = 240.0
GONE_SECONDS = 20.0
MOST_STARTS = 12
PATIENCE_SECONDS = 0.5
KILLED = -9
KINDS = ("child", "child", "server", "template", "driver")
RAY_KINDS = ("child", "server", "template", "worker", "worker", "driver", "raylet", "node")


@dataclass(frozen=True)
class Quiet:
    """A recipe and the tree of an undisturbed run."""

    recipe: Path
    tree: dict[str, str]
    seconds: float

    @classmethod
    def run(cls, folder: Path, write: Callable[[Path], Path] = write_shelf) -> Quiet:
        """Run a recipe once through the command line. write: writes the recipe into a folder and returns its path."""
        recipe, root = write(folder / "shelf"), folder / "quiet"
        started = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "datakit", "run", str(recipe), "--root", str(root), "--workers", str(WORKERS)],
            check=True, cwd=ROOT_OF_THE_CODE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return cls(recipe, tree(str(root)), time.monotonic() - started)


@dataclass
class Report:
    """The events of a round; `troubles` are those that must not happen."""

    seed: int
    seconds: float = 0.0
    kills: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    starts: int = 0
    troubles: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Summarize the round in one line."""
        verdict = "same bytes" if not self.troubles else "DIFFERENT: " + "; ".join(self.troubles)
        deaths = " ".join(f"{kind}:{self.kills.count(kind)}" for kind in sorted(set(self.kills))) or "none"
        faults = " ".join(sorted(self.faults)) or "none"
        return (
            f"seed {self.seed}: {self.seconds:5.1f} s, starts {self.starts}, kills {deaths}, faults {faults}: {verdict}"
        )


def run_round(
    quiet: Quiet, folder: Path, seed: int, nodes: TwoNodes | None = None, *, kills: int = 6, hangs: bool = True
) -> Report:
    """Run one round in a fresh root below `folder`."""
    return _Round(quiet, folder, seed, nodes).run(kills, hangs)


class _Round:
    def __init__(self, quiet: Quiet, folder: Path, seed: int, nodes: TwoNodes | None) -> None:
        self._quiet, self._nodes, self._dice = quiet, nodes, random.Random(seed)
        self._root, self._tickets, self._scratch = (folder / name for name in ("root", "tickets", "scratch"))
        for made in (self._tickets, self._scratch):
            made.mkdir(parents=True)
        self._log = folder / "driver.log"
        self._mark = uuid.uuid4().hex
        self._report = Report(seed)

    def run(self, kills: int, hangs: bool) -> Report:
        self._lay_out(hangs)
        started = time.monotonic()
        try:
            self._drive(kills, started)
            self._check()
        finally:
            kill(processes_with(self._mark))
        self._report.seconds = time.monotonic() - started
        self._report.faults = [path.name.split("-", 2)[2] for path in self._tickets.glob("taken-*")]
        return self._report

    def _lay_out(self, hangs: bool) -> None:
        kinds = ["memory", "segfault", self._dice.choice(["exit", "raise"])]
        kinds += ["hang"] if hangs and self._dice.random() < 0.5 else []
        for number, kind in enumerate(kinds):
            (self._tickets / f"{number}-{kind}-{self._dice.choice(['before', 'after'])}").touch()

    def _start(self) -> subprocess.Popen[bytes]:
        self._report.starts += 1
        command = [
            sys.executable,
            "-m",
            "tests.support.faults.chaos_faults",
            str(self._quiet.recipe),
            str(self._root),
            str(WORKERS),
        ]
        environment = os.environ | {
            MARK: self._mark,
            chaos_faults.FOLDER: str(self._tickets),
            "TMPDIR": str(self._scratch),
        }
        if self._nodes is not None:
            command.append(self._nodes.address)
            environment |= self._nodes.environment
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, cwd=ROOT_OF_THE_CODE, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def _drive(self, kills: int, started: float) -> None:
        """Kill things until a driver ends by itself; a killed driver is restarted at once."""
        driver = self._start()
        left, pause = kills, self._quiet.seconds / (kills + 1)
        while time.monotonic() - started < MOST_SECONDS:
            try:
                code = driver.wait(self._dice.uniform(0.1, 2 * pause))
            except subprocess.TimeoutExpired:
                left -= self._kill(driver) if left else 0
                continue
            if code == 0:
                return
            if code != KILLED:
                self._report.troubles.append(f"the driver ended with {code}: {self._last_words()}")
                return
            driver = self._start()
        self._report.troubles.append(f"not done after {MOST_SECONDS:.0f} s")
        driver.kill()
        driver.wait()

    def _last_words(self) -> str:
        return " | ".join(self._log.read_text(errors="replace").splitlines()[-3:])

    def _kill(self, driver: subprocess.Popen[bytes]) -> int:
        """Kill a random victim if one exists; return the number of kills, 0 or 1."""
        kind = self._dice.choice(RAY_KINDS if self._nodes else KINDS)
        victims = [driver.pid]
        if kind != "driver":  # a child may not be running at the moment
            wait_until(lambda: victims.clear() or victims.extend(self._victims(kind)) or victims, PATIENCE_SECONDS)
        if not victims or (kind == "driver" and self._report.starts >= MOST_STARTS):
            return 0
        for pid in victims if kind in ("raylet", "node") else [self._dice.choice(victims)]:
            _end(pid)
        self._report.kills.append(kind)
        if kind in ("raylet", "node"):
            assert self._nodes is not None
            for process in family(self._nodes.second):  # a node without its raylet ends by itself, but not at once
                _end(process.pid)
            self._nodes.second = self._nodes.start_second()
        return 1

    def _victims(self, kind: str) -> list[int]:
        if kind in ("node", "raylet"):
            assert self._nodes is not None
            return [process.pid for process in family(self._nodes.second) if kind == "node" or _title(process) == kind]
        everything = self._processes()
        servers = {process.pid for process in everything if _is_fork_server(process)}
        if kind == "worker":
            return [process.pid for process in everything if _is_worker(_title(process))]
        parents = {pid: _parent(pid) for pid in servers}
        depth = ("template", "server", "child").index(kind)
        return [pid for pid in servers if _ancestors(pid, parents) == depth]

    def _processes(self) -> list[psutil.Process]:
        return processes_with(self._mark) + (processes_with(self._nodes.mark) if self._nodes else [])

    def _check(self) -> None:
        """Check everything that must hold after a run, whatever was killed."""
        if self._report.troubles:
            return
        left = tree(str(self._root))
        wrong = {path for path in left.keys() | self._quiet.tree.keys() if left.get(path) != self._quiet.tree.get(path)}
        if wrong:
            self._trouble(f"{len(wrong)} files differ, such as {sorted(wrong)[:3]}")
        if twice := committed_twice(str(self._root)):
            self._trouble(f"tasks were committed twice with different bytes: {twice[:3]}")
        for folder in (self._root, self._scratch):
            if found := [str(path.relative_to(folder)) for path in folder.rglob(".tmp-*")]:
                self._trouble(f"{len(found)} temporary files are left, such as {found[0]}")
        if not wait_until(lambda: not self._ours(), GONE_SECONDS):
            self._trouble(f"processes are left: {[(process.pid, _title(process)) for process in self._ours()]}")
        # A process may die so late that it still writes to its folder while the run removes it. The next run removes
        # such a folder.
        with patch.object(tempfile, "tempdir", str(self._scratch)):
            remove_dead_scratch()
        if found := [path.name for path in self._scratch.glob("datakit-*")]:
            self._trouble(f"{len(found)} scratch folders cannot be removed by the next run, such as {found[0]}")

    def _ours(self) -> list[psutil.Process]:
        """List leftover processes: all that this run started; on a cluster, which keeps running, the fork servers."""
        of_the_cluster = processes_with(self._nodes.mark) if self._nodes else []
        return processes_with(self._mark) + [process for process in of_the_cluster if _is_fork_server(process)]

    def _trouble(self, text: str) -> None:
        self._report.troubles.append(text)


def committed_twice(root: str) -> list[str]:
    """List tasks with two attempts of different outputs, and attempts that found other bytes."""
    outputs: dict[tuple[str, str, str, str], set[tuple[tuple[str, int, str], ...]]] = {}
    found = []
    for step in {urls.parent(urls.parent(info.url)) for info in urls.listing(root) if "/ledger/" in f"/{info.path}"}:
        for line in read_ledger(step):
            if not isinstance(line, AttemptLine):
                continue
            if "exists with different content" in line.message:
                found.append(f"{step} {line.phase} {line.key}: {line.message}")
            if line.result is not None:
                written = tuple((output.path, output.bytes, output.xxh3) for output in line.result.outputs)
                outputs.setdefault((step, line.phase, line.key, line.digest), set()).add(written)
    return found + [" ".join(task) for task, versions in outputs.items() if len(versions) > 1]


def _is_fork_server(process: psutil.Process) -> bool:
    """Return True for a template process, a fork server or one of its children."""
    try:
        return any("datakit.engine.worker.forkserver" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _is_worker(title: str) -> bool:
    """Return True for a Ray worker process. Ray's agents, whose death ends a raylet, have similar titles."""
    return title.startswith("ray::") and not title.endswith("Agent")


def _title(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
    except psutil.Error:
        return ""
    return os.path.basename(words[0]) if words else ""


def _parent(pid: int) -> int:
    try:
        return psutil.Process(pid).ppid()
    except psutil.Error:
        return 0


def _ancestors(pid: int, parents: dict[int, int]) -> int:
    """Count the ancestors of a process that are among the keys of `parents`."""
    parent = parents[pid]
    return 1 + _ancestors(parent, parents) if parent in parents else 0


def _end(pid: int) -> None:
    try:
        psutil.Process(pid).kill()
    except psutil.Error:
        return
