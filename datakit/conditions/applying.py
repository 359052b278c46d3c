"""Determines which rules apply to which documents of a row group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datakit.conditions.config import Rule
from datakit.conditions.count_ranks import keys_of
from datakit.conditions.expressions import Answers
from datakit.conditions.phase_data import Shared, Work
from datakit.conditions.records import RowGroup


def applying(group: RowGroup, answers: Sequence[Answers], work: Work, shared: Shared) -> tuple[np.ndarray, np.ndarray]:
    """Return which rules apply to which documents, and which could not be decided: bool [R, N] each."""
    applies = np.zeros((len(answers), len(group.high)), bool)
    missing = np.zeros_like(applies)
    for number, (rule, answer) in enumerate(zip(shared.rules, answers, strict=True)):
        if rule.sources and work.part.source not in rule.sources:
            continue
        missing[number] = answer.missing
        applies[number] = answer.where
        if rule.ranks:
            applies[number, answer.where] = _within(rule, shared.cuts[str(number)], group, answer)
        if rule.missing:
            applies[number] |= answer.missing
    return applies, missing


def _within(rule: Rule, cut: str, group: RowGroup, answer: Answers) -> np.ndarray:
    """Return which documents of a rule's population belong to its share, bool [M]. cut: the last key of the lowest, or
    the first key of the highest.
    """
    words = keys_of(group, answer)
    if not cut:
        return np.zeros(len(words[0]), bool)
    beyond, equal = np.zeros(len(words[0]), bool), np.ones(len(words[0]), bool)
    for start, word in zip(range(0, 48, 16), words, strict=True):
        limit = np.uint64(int(cut[start : start + 16], 16))
        beyond |= equal & (word < limit if rule.lowest is not None else word > limit)
        equal &= word == limit
    return beyond | equal
