"""Types of the data that dedup passes between its plan and its tasks.

The engine transports only plain values: `msgspec.to_builtins` encodes these classes and `msgspec.convert` decodes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from datakit.dedup.partitions import Part
from datakit.engine.task import TaskResult

T = TypeVar("T")


@dataclass(frozen=True)
class Shared:
    """Values shared by the tasks of most phases: partitions, the options the tasks need, and runs of earlier exchanges.

    exact_runs: rows removed as exact duplicates. runs: what the phase reads. verdict_runs: verdicts of `verify`.
    """

    parts: list[Part]
    bands: int
    ngram: int
    threshold: float
    measure: str
    prefer: tuple[str, ...]
    max_comparisons: int
    exact_runs: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    verdict_runs: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PartRange:
    """Arguments of a task that reads parts [first, stop). buckets: the number of buckets it routes rows to, or 0."""

    first: int
    stop: int
    buckets: int = 0


@dataclass(frozen=True)
class Runs:
    """Result: the runs that a task wrote. Also the shared value of tasks that need only the runs they read."""

    runs: list[str]


@dataclass(frozen=True)
class ForestFiles:
    """Result: the paths of the forests that a task wrote, and the number of their edges."""

    forests: list[str]
    edges: int


@dataclass(frozen=True)
class Labelled(Runs):
    """Result of phase `labels`: the number of clustered rows and the number of their components."""

    rows: int
    components: int


@dataclass(frozen=True)
class Judged(Runs):
    """Result of phase `verify`.

    histogram: clusters by size, rounded down to a power of two. largest: the largest as [size, retained, cluster id].
    """

    histogram: dict[str, int]
    largest: list[tuple[int, int, str]]


@dataclass(frozen=True)
class Written:
    """Result of phase `attributes`, one entry per part. removed: [exact, fuzzy]. bounds: [first id, last id]."""

    removed: list[tuple[int, int]]
    bounds: list[tuple[str | None, str | None]]


def details_of(results: Sequence[TaskResult], kind: type[T]) -> list[T]:
    """Decode the details of each result."""
    return [msgspec.convert(result.details, kind) for result in results]
