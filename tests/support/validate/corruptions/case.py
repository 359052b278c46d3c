"""Defines a corruption, names the steps of the root, and makes changes that several stages share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from tests.support.validate.damage import Change, at, column, forged

DOWNLOAD, PAGES = "sources/pages/download-*", "sources/pages/normalize-*"
NORMALIZE, LETTERS = "sources/novels/normalize-*", "sources/letters/normalize-*"
SIGNATURES, DEDUP = "sources/letters/signatures-*", "shelf/dedup-*"
SELECT, CONSOLIDATE = "shelf/select-*", "shelf/consolidate-*"
TRAINED, CONTRACT, CACHE = "shelf/train-tokenizer-*", "shelf/contract-*", "shelf/tokenize-*"
PACKING, RUN = "packing/packing-*", "small/train-*"
NOVELS = f"{NORMALIZE}/data/novels/part-*"
REMOVED = f"{DEDUP}/data/novels/part-00000*"
SHARD, METRICS, LATEST = f"{CACHE}/data/novels/shard-00000", f"{RUN}/metrics.jsonl", "shelf/latest.json"
UNKNOWN = "0" * 32
SAME_SIZE = "has the same size, but"


@dataclass(frozen=True)
class Corruption:
    """A corruption, and a finding that it must cause: the check, the file (a pattern) and a part of the difference."""

    name: str
    change: Change
    check: str
    file: str
    difference: str


def counter(step: str, name: str) -> Change:
    """Add 1 to a counter of a manifest."""
    return forged(step, "counters", name, value=lambda count: count + 1)


def texts(row: int, suffix: str) -> Callable[[pa.Table], pa.Table]:
    """Return a change of one text."""
    return column("text", at(row, lambda text: text[: -len(suffix)] + suffix))


def next_id(name: str) -> str:
    """Return the id after this one."""
    return f"{int(name, 16) + 1:032x}"
