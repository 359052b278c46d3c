"""Determines, from the rules that apply to each document, which rule decides and which documents leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datakit.conditions.config import DROP, Rule
from datakit.storage.selection.leaving_rows import RULE

NONE = -1


@dataclass(frozen=True)
class Decisions:
    """The decisions on N documents. decisive: int64 [N], the number of the rule that decides, or NONE. leaving: the
    indices of the documents that leave, int64 [M], ascending.
    """

    decisive: np.ndarray
    leaving: np.ndarray


def decide(rules: Sequence[Rule], applies: np.ndarray) -> Decisions:
    """Let the first rule that applies to a document decide. applies: bool [R, N], for each rule and document."""
    any_rule = applies.any(axis=0)
    decisive = np.where(any_rule, applies.argmax(axis=0), NONE)
    drops = np.array([rule.action == DROP for rule in rules], bool)
    return Decisions(decisive, np.flatnonzero(any_rule & drops[decisive]))


def reasons(rules: Sequence[Rule], applies: np.ndarray, leaving: np.ndarray, prefix: str = RULE) -> pa.ListArray:
    """Return, for each document that leaves, the names of all rules that would remove it, in alphabetical order, after
    the prefix.
    """
    order = [
        number for number in sorted(range(len(rules)), key=lambda one: rules[one].name) if rules[number].action == DROP
    ]
    names = pa.array([prefix + rules[number].name for number in order], pa.string())
    documents, found = np.nonzero(applies[order][:, leaving].T)
    ends = np.searchsorted(documents, np.arange(len(leaving) + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), names.take(pa.array(found)))
