"""Defines the types of the data that the plan of giant components passes to its tasks, and of the results that these
tasks return.
"""

from __future__ import annotations

from dataclasses import dataclass

from datakit.dedup.phase_data import Runs


@dataclass(frozen=True)
class Giant:
    """A giant component. documents: the number of its documents. high, low: the two halves of the smallest id.
    splitters: the survivor keys, as words, at which each block after the first one begins (`survivor_cuts.py`). first:
    the bucket of the first block; those of the other blocks follow.
    """

    component: int
    documents: int
    high: int
    low: int
    splitters: list[list[int]]
    first: int

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return len(self.splitters) + 1


@dataclass(frozen=True)
class CutShared(Runs):
    """The shared data of phase `blocks`. runs: the rows of all giant components. prefer: the survivor keys. cut: all
    giant components, in ascending order. blocks: the number of buckets to which their rows are routed.
    """

    prefer: tuple[str, ...]
    cut: list[Giant]
    blocks: int


@dataclass(frozen=True)
class SettleWork:
    """The arguments of a task that settles block `number` of a giant component. bucket: the bucket of the block. high,
    low: the smallest id of the component. answers: the runs that the probes of this block wrote, in the order of the
    earlier blocks.
    """

    number: int
    bucket: int
    high: int
    low: int
    answers: list[str]


@dataclass(frozen=True)
class ProbeWork:
    """The arguments of a task that compares the documents of a block with those retained in an earlier block. bucket:
    the bucket of the later block. earlier: the bucket of the earlier block. exchange, key: the names of the runs to
    write. retained: the runs that list the retained documents of the earlier block.
    """

    bucket: int
    earlier: int
    exchange: str
    key: str
    retained: list[str]


@dataclass(frozen=True)
class Settled(Runs):
    """The result of a task that settles a block. runs: the verdicts. retained: the runs that list retained documents.
    documents, removed: the numbers of documents, and of removed documents.
    """

    retained: list[str]
    documents: int
    removed: int
