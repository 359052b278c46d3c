"""Defines the types of the data that the plans of `rules` and `select` pass to tasks that evaluate rules, and of their
results.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from datakit.conditions.config import Rule
from datakit.conditions.records import Attributed
from datakit.storage.manifest import Partition

ID_BYTES = 32


@dataclass(frozen=True)
class Work:
    """A partition with its tables. output: the path of its list, relative to the step's directory. rows: its number of
    rows in the manifest. table_bytes: the size of the tables.
    """

    part: Attributed
    output: str
    rows: int
    table_bytes: int

    @property
    def bytes(self) -> int:
        """About how many bytes a task reads: the ids and the tables."""
        return self.rows * ID_BYTES + self.table_bytes


@dataclass(frozen=True)
class SearchState:
    """A search for a rank as a task needs it (`ranks.py`). rule: the number of its rule. prefix: in hex digits, since
    it may have 192 bits. lists: True if the task lists the keys instead of counting them.
    """

    rule: int
    prefix: str
    bits: int
    lists: bool


@dataclass(frozen=True)
class Shared:
    """Plain data for all tasks of a phase. types: the types of the documents' columns. searches: those of this round.
    cuts: the key at which the share of a rule ends, as three words in hex digits, by the rule's number; "" if the share
    contains no document.
    """

    rules: tuple[Rule, ...]
    types: dict[str, str]
    searches: tuple[SearchState, ...] = ()
    cuts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ranked:
    """The result of a task that counts. counts: for each search, pairs of a digit and the number of its keys. keys: for
    each search that lists keys, these keys in hex digits.
    """

    counts: list[list[tuple[int, int]]]
    keys: list[list[str]]


class RuleCounts(msgspec.Struct, frozen=True):
    """The effect of a rule on the documents of a source. applies: the number of documents to which it applies. decides:
    those of them to which no earlier rule applies. missing: the documents for which it could not be decided, because an
    attribute is missing. text_bytes: the bytes of text of the documents that it removes.
    """

    applies: int = 0
    decides: int = 0
    missing: int = 0
    text_bytes: int = 0

    def __add__(self, other: RuleCounts) -> RuleCounts:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return RuleCounts(*(mine + yours for mine, yours in pairs))


@dataclass(frozen=True)
class Applied:
    """The result for one partition: its list, and the counts of each rule, in order."""

    partition: Partition
    rows_in: int
    counts: list[RuleCounts]
