"""Turns hits and thresholds into decisions about documents: drop, cut, mark or keep. Nothing here reads texts, so
thresholds can change without another search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa

from datakit.annotate.contamination.annotator import HITS
from datakit.errors import ColumnError
from datakit.toml_config import key

KEEP, MARK, CUT, DROP = range(4)  # from the weakest decision to the strongest


@dataclass(frozen=True)
class Threshold:
    """Both values that a hit must reach."""

    overlap: Annotated[float, key("The share of the item's n-grams that the document contains.", 0.5)] = 0.0
    matches: Annotated[int, key("The number of the item's n-grams that the document contains.", 3)] = 1

    def __post_init__(self) -> None:
        if not 0.0 <= self.overlap <= 1.0:
            raise ValueError(f"overlap is {self.overlap}; it must be from 0 to 1")
        if self.matches < 1:
            raise ValueError(f"matches is {self.matches}; it must be at least 1")


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of the decisions; None: this decision is never made."""

    drop: Threshold | None = None
    cut: Threshold | None = None
    mark: Threshold | None = Threshold()


class Decisions(NamedTuple):
    """Decisions about N documents.

    decision: uint8 [N], the strongest decision for which one hit of the document reaches the threshold. spans: for each
    document the bytes to cut, list<struct<start, stop>>: those of all hits that reach the threshold of `cut`, sorted,
    merged where they overlap or touch; empty unless the decision is CUT.
    """

    decision: np.ndarray
    spans: pa.Array


def decide(hits: pa.Array, thresholds: Thresholds) -> Decisions:
    """Return the decisions about the documents. hits: the column `hits` of the annotator; a null counts as no hit.
    Raises ColumnError for a column of another type.
    """
    if hits.type != HITS:
        raise ColumnError(f"hits have type {hits.type}; give the column `hits` of the annotator `contamination`")
    lengths = hits.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    documents, flat = np.repeat(np.arange(len(hits)), lengths), hits.flatten()
    decision = np.zeros(len(hits), np.uint8)
    for value, threshold in ((MARK, thresholds.mark), (CUT, thresholds.cut), (DROP, thresholds.drop)):
        decision[documents[_reaching(flat, threshold)]] = value
    cut = _reaching(flat, thresholds.cut) & (decision[documents] == CUT)
    return Decisions(decision, _merged(flat.field("spans").filter(pa.array(cut)), documents[cut], hits))


def _reaching(hits: pa.Array, threshold: Threshold | None) -> np.ndarray:
    if threshold is None:
        return np.zeros(len(hits), bool)
    enough = hits.field("matches").to_numpy() >= threshold.matches
    return enough & (hits.field("overlap").to_numpy() >= threshold.overlap)


def _merged(spans: pa.Array, documents: np.ndarray, hits: pa.Array) -> pa.Array:
    """Merge the spans of each document. documents: the document of each list of spans."""
    owners, flat = np.repeat(documents, spans.value_lengths().to_numpy()), spans.flatten()
    starts, stops = (flat.field(name).to_numpy().astype(np.int64) for name in ("start", "stop"))
    order = np.lexsort((stops, starts, owners))
    owners, starts, stops = owners[order], starts[order], stops[order]
    base = owners * (int(stops.max(initial=0)) + 1)  # so that no span reaches into those of the next document
    reach = np.maximum.accumulate(stops + base)
    new = np.ones(len(starts), bool)
    new[1:] = starts[1:] + base[1:] > reach[:-1]
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(starts))[: len(first)] - 1
    ends = np.searchsorted(owners[first], np.arange(len(hits) + 1)).astype(np.int32)
    columns = [pa.array(starts[first].astype(np.uint64)), pa.array((reach[last] - base[last]).astype(np.uint64))]
    kind = hits.type.value_type.field("spans").type
    merged = pa.StructArray.from_arrays(columns, fields=[*kind.value_type])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), merged, type=kind)
