"""Counts the sort keys of documents for the search for ranks (`ranks.py`), one round at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from datakit.conditions.expressions import Answers, Conditions
from datakit.conditions.phase_data import ID_BYTES, Ranked, SearchState, Shared, Work
from datakit.conditions.ranks import Search, beginning, digits, sortable
from datakit.conditions.records import RowGroup, read_records
from datakit.engine.task import TaskContext, TaskResult

Words = tuple[np.ndarray, np.ndarray, np.ndarray]


def count(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Count the keys of some partitions by their next digit, or list them, for each search of the round."""
    common, work = msgspec.convert(shared, Shared), msgspec.convert(arguments["partitions"], list[Work])
    rules = [common.rules[search.rule] for search in common.searches]
    conditions, found = Conditions(rules), [_Found() for _ in rules]
    records = 0
    for one in work:
        for group in read_records(one.part, conditions.wanted, common.types):
            answers = conditions.answers(group.records, one.part.dataset)
            for search, rule, answer, mine in zip(common.searches, rules, answers, found, strict=True):
                if not rule.sources or one.part.source in rule.sources:
                    mine.add(search, keys_of(group, answer))
            records += len(group.high)
            context.report(records, records * ID_BYTES)
    details = Ranked([sorted(one.counts.items()) for one in found], [one.keys for one in found])
    return TaskResult(details=msgspec.to_builtins(details), records=records, bytes_read=records * ID_BYTES)


class _Found:
    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.keys: list[str] = []

    def add(self, state: SearchState, words: Words) -> None:
        search = Search(int(state.prefix, 16), state.bits)
        if state.lists:
            self.keys += hex_keys(words, beginning(words, search))
            return
        for digit, number in zip(*np.unique(digits(words, search), return_counts=True), strict=True):
            self.counts[int(digit)] = self.counts.get(int(digit), 0) + int(number)


def keys_of(group: RowGroup, answer: Answers) -> Words:
    """Return the sort keys of the documents in a rule's population, as three words, uint64 [M] each."""
    chosen = answer.where
    return sortable(answer.value[chosen]), group.high[chosen], group.low[chosen]


def hex_keys(words: Words, rows: Sequence[int] | np.ndarray) -> list[str]:
    """Return some keys as 48 hex digits each."""
    return ["".join(f"{int(word[row]):016x}" for word in words) for row in rows]
