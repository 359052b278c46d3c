"""Defines the types of the data that dedup's plan passes to its tasks, and of the results that the tasks return. The
engine transports only plain values: `msgspec.to_builtins` encodes these classes and `msgspec.convert` decodes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from datakit.dedup.partitions import Part
from datakit.engine.exchange.row_buckets import RowBuckets
from datakit.engine.task import TaskResult

T = TypeVar("T")


@dataclass(frozen=True)
class Shared:
    """The values that the tasks of most phases share: options, the sources, and the runs of earlier exchanges. Their
    size does not depend on the number of parts, because each task gets its own parts as arguments (`PartRange`).

    buckets: the buckets of the exchanges that are routed by row. sources: the name and the first row of each source.
    exact_runs: the runs that list the documents removed as exact duplicates. runs: the runs that the phase itself
    reads. verdict_runs: the runs that hold the verdicts. giants: the giant components, each with about how many
    documents it has; giant_buckets: the number of buckets to which their rows are routed (`giant_rows.py`).
    """

    buckets: RowBuckets
    sources: list[tuple[str, int]]
    bands: int
    ngram: int
    threshold: float
    measure: str
    prefer: tuple[str, ...]
    max_comparisons: int
    exact_runs: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    verdict_runs: list[str] = field(default_factory=list)
    giants: list[tuple[int, int]] = field(default_factory=list)
    giant_buckets: int = 1


@dataclass(frozen=True)
class PartRange:
    """The arguments of a task for neighboring parts. first: the index of the first one among all parts. buckets: the
    number of buckets to which the task routes rows, or 0.
    """

    first: int
    parts: list[Part]
    buckets: int = 0

    @property
    def rows(self) -> tuple[int, int]:
        """The first row of these parts, and the end of their rows (exclusive)."""
        return self.parts[0].first_row, self.parts[-1].last_row


@dataclass(frozen=True)
class IdRange:
    """The arguments of a task for range `range` of 2**bits ranges of ids. parts: all parts that may hold such ids."""

    range: int
    bits: int
    parts: list[Part]


@dataclass(frozen=True)
class Runs:
    """The runs that a task wrote; also the shared value of a phase whose tasks need to know only which runs to read."""

    runs: list[str]


@dataclass(frozen=True)
class ForestFiles:
    """The paths of the forest files that a task wrote, and the number of edges in them."""

    forests: list[str]
    edges: int


@dataclass(frozen=True)
class Forests:
    """The arguments of a task that reads forest files. buckets: the number of buckets to which the task routes edges; 0
    if it routes labels by row.
    """

    name: str
    forests: list[str]
    buckets: int = 0


@dataclass(frozen=True)
class BucketRange:
    """The arguments of a task for buckets [first, stop)."""

    first: int
    stop: int


@dataclass(frozen=True)
class Round:
    """The shared data of a phase that belongs to a round of stars. number: 1 for the first round. runs: the runs of the
    previous phase. labels: the runs with the labels of the nodes that remained after the round; they are needed to
    label the nodes that the round retired. rows: the buckets to which the last phase routes labels. memory: the memory
    of a task. It is part of the names of all files, because a run that is resumed with another setting writes different
    files. large: the last phase reports components of which a task labels at least this many nodes.
    """

    number: int
    buckets: int
    memory: int
    runs: list[str]
    labels: list[str] = field(default_factory=list)
    rows: RowBuckets = field(default_factory=lambda: RowBuckets(0, 1))
    large: int = 1


@dataclass(frozen=True)
class Reduced(Runs):
    """The result of a small-star task. runs: the edges for the next round, in both directions. edges: the number of
    these edges, each counted once. retired: the runs with the edges of the nodes that this round retired. nodes: the
    number of these nodes.
    """

    edges: int
    retired: list[str]
    nodes: int


@dataclass(frozen=True)
class Labelled(Runs):
    """The result of a task of phase `labels`: its runs, the number of clustered rows and the number of components.
    large: the components with most rows, and the number of rows of each (see `Round.large`).
    """

    rows: int
    components: int
    large: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Described:
    """Some rows of a giant component: their number, the two halves of their smallest id, and a sample of their survivor
    keys, as words (`survivor_cuts.py`).
    """

    component: int
    documents: int
    high: int
    low: int
    sample: list[list[int]]


@dataclass(frozen=True)
class Routed(Runs):
    """The result of a task of phase `shingles`. giant_runs: the runs with the rows of giant components. described: the
    giant components of which the task has rows.
    """

    giant_runs: list[str] = field(default_factory=list)
    described: list[Described] = field(default_factory=list)


@dataclass(frozen=True)
class Judged(Runs):
    """The result of a task of phase `verify`. histogram: the number of clusters of each size, with sizes rounded down
    to a power of two. largest: the largest clusters, each as [size, number of retained documents, cluster id].
    """

    histogram: dict[str, int]
    largest: list[tuple[int, int, str]]


@dataclass(frozen=True)
class Written:
    """The result of a task of phase `attributes`: two lists, each with one entry per part.

    removed: the numbers of documents removed as (exact, fuzzy) duplicates. bounds: the ids of the (first, last) removed
    document; (None, None) if no document is removed.
    """

    removed: list[tuple[int, int]]
    bounds: list[tuple[str | None, str | None]]


def details_of(results: Sequence[TaskResult], kind: type[T]) -> list[T]:
    """Decode the details of each result as an instance of `kind`."""
    return [msgspec.convert(result.details, kind) for result in results]
