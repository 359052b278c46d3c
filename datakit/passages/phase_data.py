"""Defines the types of the data that the plan of `passages` passes to its tasks, and of their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import pyarrow as pa

from datakit.engine.exchange.row_buckets import RowBuckets
from datakit.engine.task import TaskResult
from datakit.passages.config import SearchConfig
from datakit.storage.manifest import Partition

PASSAGES, REPEATS, COPIES = "passages", "repeats", "copies"  # the names of the exchanges
STRETCHES, UNDECIDED, TEXTS = "stretches", "undecided", "texts"  # those of searches for substrings
STRETCH_COPIES, SUBSTRING_COPIES = "stretch-copies", "substring-copies"
ROW_BYTES = 33  # the size of a passage in the exchange
BUDGET_BYTES = 128 << 20  # the memory of an exchange writer
SPAN = pa.schema([("row", pa.uint64()), ("start", pa.uint32()), ("stop", pa.uint32()), ("search", pa.uint8())])
T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """A normalized partition. documents: its path, relative to the step's directory. marks: the paths of the lists of
    its documents that rules or dedup have marked. first_row: the row number of its first document. output: the path of
    its table of spans.
    """

    source: str
    first_row: int
    rows: int
    documents: str
    marks: list[str]
    output: str
    text_bytes: int

    @property
    def last_row(self) -> int:
        """The end of this partition's row numbers (exclusive)."""
        return self.first_row + self.rows


@dataclass(frozen=True)
class PartRange:
    """The arguments of a task for neighboring parts. first: the index of the first one among all parts."""

    first: int
    parts: list[Part]


@dataclass(frozen=True)
class Search:
    """A search of the recipe, with its number among all searches in alphabetical order."""

    name: str
    number: int
    config: SearchConfig


@dataclass(frozen=True)
class Shared:
    """The values that the tasks of all phases share. drop: the reasons for which marked documents leave. buckets: the
    number of buckets to which passages are routed by hash. stretches, texts: likewise, for stretches of substrings and
    their texts. by_row: the buckets to which spans are routed by row. runs: the runs that the phase reads.
    """

    searches: list[Search]
    drop: list[str]
    buckets: int
    by_row: RowBuckets
    stretches: int = 1
    texts: int = 1
    runs: list[str] = field(default_factory=list)


class SearchCounts(msgspec.Struct, frozen=True):
    """The counts of a search. found: the passages that are long enough. marked: the spans of copies. marked_bytes: the
    bytes in these spans. documents: the documents with such spans.
    """

    found: int = 0
    marked: int = 0
    marked_bytes: int = 0
    documents: int = 0

    def __add__(self, other: SearchCounts) -> SearchCounts:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return SearchCounts(*(mine + yours for mine, yours in pairs))


class Read(msgspec.Struct, frozen=True):
    """The counts of one part: the documents that were searched, those that leave, and for each search, by its number,
    the passages found.
    """

    documents: int
    left_out: int
    found: list[int]


@dataclass(frozen=True)
class Routed:
    """The result of a task that finds passages: its runs of passages, its runs of spans (copies within documents), its
    runs of stretches of substrings, and what it read of each part. repeated: for each search, the number of these
    spans.
    """

    runs: list[str]
    span_runs: list[str]
    stretch_runs: list[str]
    read: list[Read]
    repeated: list[int]


@dataclass(frozen=True)
class Copied:
    """The result of a task that finds copies: its runs of spans. read, marked: for each search, the numbers of passages
    and of spans. repeated: the number of different passages of which copies were marked.
    """

    runs: list[str]
    read: list[int]
    marked: list[int]
    repeated: list[int]


@dataclass(frozen=True)
class Compared:
    """The result of a task that compares stretches of substrings, or substrings: its runs of spans. read, spans: for
    each search, the numbers of substrings and of spans.
    """

    runs: list[str]
    read: list[int]
    spans: list[int]


@dataclass(frozen=True)
class Undecided:
    """The further result of a task that compares stretches: its runs of undecided substrings. substrings: for each
    search, their number. bytes: the size of their texts.
    """

    compared: Compared
    runs: list[str]
    substrings: list[int]
    bytes: int


@dataclass(frozen=True)
class Written:
    """The result for one part: its table of spans, and for each search, its counts without the passages found."""

    partition: Partition
    counts: list[SearchCounts]


@dataclass(frozen=True)
class Tables:
    """The result of a task that writes tables. read: for each search, the number of spans before those of substrings
    were joined.
    """

    parts: list[Written]
    read: list[int]


def details_of(results: Sequence[TaskResult], kind: type[T]) -> list[T]:
    """Decode the details of each result as an instance of `kind`."""
    return [msgspec.convert(result.details, kind) for result in results]
