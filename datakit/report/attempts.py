"""Sums up the attempts in the ledgers of a report's steps: time, memory and retries of each stage, and when each step
was worked on.

The sums cover all runs that worked on the steps or, in a report about a run, only that run. The timeline always shows a
single run: the given run, or the newest run that executed a task of these steps. It has BINS bins and at most
MOST_SPANS spans per stage, so its size does not depend on the number of tasks or sources.

Cost: one read of each step's ledger; 16 bytes of memory per attempt of the newest run.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from datakit.engine.executor import Cause
from datakit.engine.ledger.ledger import AttemptLine, DriverLine, UnknownLine, read_ledger
from datakit.lineage.graph import FoundStep

BINS = 120
MOST_SPANS = 24


@dataclass
class StageWork:
    """The work on all steps of a stage. elapsed: the seconds for which drivers worked on the steps. peak_memory,
    budget: of the attempt that came closest to its budget. largest: the highest peak memory of any attempt. shares: the
    number of attempts whose peak memory is in each tenth of their budget; the last entry counts those that reached or
    exceeded it.
    """

    stage: str
    attempts: int = 0
    elapsed: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory: int = 0
    budget: int = 0
    largest: int = 0
    written: int = 0
    shares: list[int] = field(default_factory=lambda: [0] * 11)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def used(self) -> float:
        """The largest share of its budget that any attempt used."""
        return self.peak_memory / self.budget if self.budget else 0.0

    def add(self, line: AttemptLine) -> None:
        """Count an attempt."""
        self.attempts += 1
        self.seconds += line.seconds
        self.cpu_seconds += line.cpu_seconds
        self.written += line.written
        self.largest = max(self.largest, line.peak_memory)
        if line.cause is not Cause.DONE:
            self.failures[line.cause.value] += 1
        if line.budget:
            self.shares[min(10, line.peak_memory * 10 // line.budget)] += 1
            if line.peak_memory * self.budget >= self.peak_memory * line.budget:
                self.peak_memory, self.budget = line.peak_memory, line.budget


@dataclass(frozen=True)
class Span:
    """The time during which a run worked on a step, in seconds from the start of the timeline. steps: the number of
    steps that the span covers.
    """

    stage: str
    label: str
    start: float
    end: float
    steps: int = 1


@dataclass(frozen=True)
class Timeline:
    """A run over time. busy: for each stage, the average number of running attempts in each of BINS bins of `width`
    seconds.
    """

    run: str
    width: float
    spans: tuple[Span, ...]
    busy: dict[str, list[float]]


@dataclass(frozen=True)
class Work:
    """The work of all stages, and the timeline of one run; None if no attempt is recorded."""

    stages: tuple[StageWork, ...]
    timeline: Timeline | None


@dataclass
class _DriverWork:
    """The work of one driver on one step. first, last: when the driver began, and the time of its last ledger line.
    ends, seconds: the end and the duration of each attempt.
    """

    step: FoundStep
    first: float
    last: float
    ends: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))


def read_work(steps: Iterable[FoundStep], run: str | None) -> Work:
    """Read the ledgers of the steps. run: if given, only this run's attempts count."""
    stages: dict[str, StageWork] = {}
    newest, parts = run or "", list[_DriverWork]()
    for step in steps:
        work = stages.setdefault(step.stage, StageWork(step.stage))
        for driver, part in _by_driver(step, work, run):
            work.elapsed += part.last - part.first
            if driver > newest and part.ends:
                newest, parts = driver, []
            if driver == newest and part.ends:
                parts.append(part)
    worked = tuple(work for work in stages.values() if work.attempts)
    return Work(worked, _timeline(newest, parts) if parts else None)


def _by_driver(step: FoundStep, work: StageWork, run: str | None) -> Iterator[tuple[str, _DriverWork]]:
    """Yield each driver and its part of the work on a step, and add its attempts to `work`. The lines of a driver are
    contiguous in the ledger.
    """
    driver, part = "", None
    for line in read_ledger(step.directory):
        if isinstance(line, UnknownLine):
            continue
        if isinstance(line, DriverLine):
            if part is not None:
                yield driver, part
            driver = line.driver
            part = _DriverWork(step, line.time, line.time) if run in (None, driver) else None
        elif part is not None:
            part.last = max(part.last, line.time)
            if isinstance(line, AttemptLine):
                work.add(line)
                part.ends.append(line.time)
                part.seconds.append(line.seconds)
    if part is not None:
        yield driver, part


def _timeline(run: str, parts: list[_DriverWork]) -> Timeline:
    start, end = min(part.first for part in parts), max(part.last for part in parts)
    width = max(end - start, 1e-3) / BINS
    busy: dict[str, np.ndarray] = {}
    for part in parts:
        total = busy.setdefault(part.step.stage, np.zeros(BINS))
        total += _busy(np.frombuffer(part.ends), np.frombuffer(part.seconds), start, width)
    spans = [_span(part, start) for part in sorted(parts, key=lambda part: part.first)]
    rounded = {stage: [round(value, 3) for value in values.tolist()] for stage, values in busy.items()}
    return Timeline(run, width, tuple(_limited(spans)), rounded)


def _span(part: _DriverWork, start: float) -> Span:
    label = part.step.manifest.dataset if part.step.manifest else part.step.directory.rpartition("/")[2]
    return Span(part.step.stage, label, round(part.first - start, 3), round(part.last - start, 3))


def _busy(ends: np.ndarray, seconds: np.ndarray, start: float, width: float) -> np.ndarray:
    """Return the average number of running attempts in each bin. The total time that attempts have run up to a moment
    is a piecewise linear function of the moment, so its values at the edges suffice, without a loop over bins and
    attempts.
    """
    edges = np.arange(BINS + 1) * width
    stops = np.maximum(ends - start, 0.0)
    starts = np.maximum(stops - seconds, 0.0)
    return np.diff(_elapsed(edges, starts) - _elapsed(edges, stops)) / width


def _elapsed(edges: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Return, for each edge, the sum of the times from all earlier moments to the edge."""
    ordered = np.sort(moments)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    before = np.searchsorted(ordered, edges)
    return before * edges - sums[before]


def _limited(spans: list[Span]) -> Iterator[Span]:
    """Yield the spans; if a stage has more than MOST_SPANS of them, neighbors are merged so that at most MOST_SPANS
    remain.
    """
    for stage in dict.fromkeys(span.stage for span in spans):
        own = [span for span in spans if span.stage == stage]
        size = -(-len(own) // MOST_SPANS)
        for group in (own[first : first + size] for first in range(0, len(own), size)):
            label = group[0].label if len(group) == 1 else f"{len(group)} steps"
            yield Span(stage, label, group[0].start, max(span.end for span in group), len(group))
