"""Types of what dedup passes between its plan and its tasks.

The engine carries plain values: `msgspec.to_builtins` encodes these classes and `msgspec.convert` decodes them.
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
    """Shared by the tasks of most phases: the partitions, the options they need, and runs of earlier exchanges.

    exact_runs: rows removed as exact duplicates. runs: the exchange that the phase reads. verdict_runs: verdicts.
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
    """Arguments of a task that reads parts [first, stop). buckets: how many it routes its rows to, if it does."""

    first: int
    stop: int
    buckets: int = 0


@dataclass(frozen=True)
class Runs:
    """Result: the runs that a task wrote. Also shared by tasks that need only the runs they read."""

    runs: list[str]


@dataclass(frozen=True)
class ForestFiles:
    """Result: the paths of the forests that a task wrote, and the number of their edges."""

    forests: list[str]
    edges: int


@dataclass(frozen=True)
class Labelled(Runs):
    """Result of phase `labels`: how many rows are clustered, in how many components."""

    rows: int
    components: int


@dataclass(frozen=True)
class Judged(Runs):
    """Result of phase `verify`.

    histogram: clusters by the largest power of two up to their size. largest: [size, retained, cluster id] each.
    """

    histogram: dict[str, int]
    largest: list[tuple[int, int, str]]


@dataclass(frozen=True)
class Written:
    """Result of phase `attributes`, by part: removed [exact, fuzzy], and the file's [first id, last id]."""

    removed: list[tuple[int, int]]
    bounds: list[tuple[str | None, str | None]]


def details_of(results: Sequence[TaskResult], kind: type[T]) -> list[T]:
    """Decode the details of each result."""
    return [msgspec.convert(result.details, kind) for result in results]
