"""Defines the results of a simulated run (by phase, by step and in total), and decides what does not scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from datakit.pipeline.simulate.clock import Cluster

HOUR = 3600.0
LARGE_MANIFEST = 1 << 30  # bytes
LARGE_DRIVER = 4 << 30
ALONE_SHARE = 0.02  # a task or a small phase is reported if it takes a larger share of the run's time
LONG = 600.0  # seconds
LARGE_SHARED, SHARED_SHARE = 1 << 40, 0.1  # what all tasks of a phase read: bytes, and share of all reads
MOST_REQUESTS = 10**8


@dataclass
class PhaseFigures:
    """The results for one phase of one step. `started` and `ended` are virtual times, in seconds since the start of the
    run.

    tasks: the number of tasks. reads, writes: the numbers of requests to the store; a large file takes several. files:
    the number of files written. read_bytes: all bytes read. exchanged: bytes written to the exchange. shared: the size
    of the phase's shared data, which every worker reads. longest: the time of the longest task, in seconds. largest:
    the input of the largest task, in bytes. memory: the largest memory that a task declares, in bytes.
    """

    stage: str
    source: str | None
    phase: str
    tasks: int
    shared: int = 0
    reads: int = 0
    writes: int = 0
    files: int = 0
    read_bytes: int = 0
    exchanged: int = 0
    cpu_seconds: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    longest: float = 0.0
    largest: int = 0
    memory: int = 0

    @property
    def seconds(self) -> float:
        """The duration of the phase."""
        return self.ended - self.started


@dataclass(frozen=True)
class StepFigures:
    """The results for one step. ledger, manifest: sizes in bytes. lists: how often the files are listed. files: how
    many.
    """

    stage: str
    source: str | None
    phases: tuple[PhaseFigures, ...]
    started: float
    ended: float
    ledger: int
    manifest: int
    lists: int
    files: int
    partitions: int


@dataclass(frozen=True)
class Simulation:
    """The results of a simulated run. text_bytes: the size of the simulated text. seconds: the virtual time of the run.
    cpu_hours: the CPU time of all tasks. core_hours: the hours of the run times all cores of the cluster. money: the
    price of the core-hours. driver_memory: the resident memory of a driver, in bytes: that of its modules, and what the
    memory of the simulating process grew by.
    driver_seconds: the CPU-seconds of the simulating process; a real driver takes most of them, too. critical: the
    steps on the critical path, in order. notes: what does not scale or does not fit.
    """

    dataset: str
    text_bytes: int
    cluster: Cluster
    steps: tuple[StepFigures, ...]
    seconds: float
    cpu_hours: float
    core_hours: float
    money: float | None
    utilisation: float
    driver_memory: int
    driver_seconds: float
    critical: tuple[str, ...]
    notes: tuple[str, ...]


def label(stage: str, source: str | None) -> str:
    """Return a step's name for messages."""
    return f"{stage} {source}" if source else stage


def shortcomings(steps: Sequence[StepFigures], cluster: Cluster, seconds: float, driver: int) -> Iterator[str]:
    """Yield a sentence for everything that does not scale to the simulated size."""
    node = cluster.cores * cluster.memory
    for step in steps:
        name = label(step.stage, step.source)
        if step.manifest > LARGE_MANIFEST:
            yield f"{name}: its manifest has {step.manifest / 1e9:.1f} GB, and every later driver reads all of it"
        for phase in step.phases:
            yield from (f"{name}, phase {phase.phase}: {text}" for text in _of_phase(phase, cluster, seconds, node))
    if driver > LARGE_DRIVER:
        yield f"the driver needs {driver / 1e9:.1f} GB"


def _of_phase(phase: PhaseFigures, cluster: Cluster, seconds: float, node: int) -> Iterator[str]:
    if phase.longest > max(LONG, ALONE_SHARE * seconds):
        yield (f"one of {phase.tasks:,} tasks takes {phase.longest / HOUR:.1f} h "
               f"and reads {phase.largest / 1e9:,.1f} GB")  # fmt: skip
    elif phase.tasks < cluster.slots and phase.seconds > max(LONG, ALONE_SHARE * seconds):
        yield f"only {phase.tasks:,} tasks for {cluster.slots:,} slots, for {phase.seconds / HOUR:.1f} h"
    if phase.reads + phase.writes > MOST_REQUESTS:
        each = (phase.reads + phase.writes) / phase.tasks
        yield f"{(phase.reads + phase.writes) / 1e6:,.0f} million requests to the store, {each:,.0f} for each task"
    if phase.memory > node:
        yield f"a task declares {phase.memory / 1e9:,.1f} GB of memory, more than a node has"
    if phase.shared * phase.tasks > max(LARGE_SHARED, SHARED_SHARE * phase.read_bytes):
        yield (f"every task reads {phase.shared / 1e6:,.1f} MB of shared data, "
               f"{phase.shared * phase.tasks / 1e12:,.2f} TB in all")  # fmt: skip
