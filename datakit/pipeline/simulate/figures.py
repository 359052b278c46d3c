"""Defines the figures of a simulated run (by phase, by step and in total), and decides which of them do not scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from datakit.pipeline.simulate.clock import Cluster

HOUR = 3600.0
LARGE_MANIFEST = 1 << 30  # bytes
LARGE_DRIVER = 4 << 30
ALONE_SHARE = 0.02  # a task that runs for a larger share of the whole time, in a phase with free slots, is reported
LONG = 600.0  # seconds
LARGE_SHARED, SHARED_SHARE = 1 << 40, 0.1  # bytes of shared data that all tasks of a phase read, also per byte of input
MOST_REQUESTS = 10**8


@dataclass
class PhaseFigures:
    """One phase of one step. Times are virtual: `started` and `ended` since the start of the run, in seconds.

    tasks: their number. reads, writes: requests to the store. exchanged: bytes written to the exchange, and read_bytes
    all bytes read. shared: the size of the phase's shared data, which every task reads. longest: the seconds of the
    longest task; largest: its input in bytes. memory: the largest memory that a task declares, in bytes.
    """

    stage: str
    source: str | None
    phase: str
    tasks: int
    shared: int = 0
    reads: int = 0
    writes: int = 0
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
    """One step. ledger, manifest: their sizes in bytes. lists: listings of the step's files; files: their number."""

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
    """The figures of a run. text_bytes: the simulated text. seconds: the virtual time. cores: core-hours of the whole
    cluster; money: what they cost. driver_memory: bytes by which the resident memory of the simulating process grew.
    driver_seconds: CPU-seconds that it took, which a real driver would take, too. critical: the steps that the run
    waits for, in order. notes: what does not scale or does not fit.
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
    """Return the name of a step for the user."""
    return f"{stage} {source}" if source else stage


def shortcomings(steps: Sequence[StepFigures], cluster: Cluster, seconds: float, driver: int) -> Iterator[str]:
    """Yield a sentence for everything that does not scale to the simulated size."""
    node = cluster.cores * cluster.memory
    for step in steps:
        name = label(step.stage, step.source)
        if step.manifest > LARGE_MANIFEST:
            yield f"{name}: its manifest has {step.manifest / 1e9:.1f} GB, which every later driver reads at once"
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
