"""Turns the spans of several edits into the stretches of text that change.

Spans that share at least one byte become one stretch. It is cut if one of them is to be cut; otherwise, it is replaced
once, by the replacement of the span that begins first (of several, the one that stops first, then that of the first
edit in alphabetical order). A stretch belongs to the edit whose replacement it gets or, if it is cut, to the first of
its spans that is to be cut. This is the rule of `annotate/editing/masking.py`, applied to edits instead of kinds.

Cost: sorting the spans; numpy works on all spans of a row group together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Found(NamedTuple):
    """S spans of the texts of a column, in any order. rows: the index of each one's text. starts, stops: its bytes in
    this text. edits: the index of its edit. int64 [S] each.
    """

    rows: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    edits: np.ndarray


def concatenated(found: list[Found]) -> Found:
    """Return all spans together."""
    return Found(*(np.concatenate([np.empty(0, np.int64), *parts]) for parts in zip(*found, strict=True)))


def merged(spans: Found, cuts: np.ndarray) -> Found:
    """Return the disjoint stretches that the spans make up, ordered by text and position, each with its edit. cuts:
    whether each edit cuts its spans, bool [edits].

    >>> spans = Found(*np.array([[0, 0, 0], [4, 0, 2], [6, 3, 5], [0, 0, 1]]))
    >>> [part.tolist() for part in merged(spans, np.array([False, True]))]
    [[0], [0], [6], [1]]
    """
    order = np.lexsort((spans.edits, spans.stops, spans.starts, spans.rows))
    rows, starts, stops, edits = (part[order] for part in spans)
    first = _begins(rows, starts, stops)
    if not len(first):
        return Found(rows, starts, stops, edits)
    cutting = np.where(cuts[edits], np.arange(len(edits)), len(edits))
    chosen = np.minimum.reduceat(cutting, first)  # each stretch's first span that is to be cut
    chosen = np.where(chosen < len(edits), chosen, first)
    return Found(rows[first], starts[first], np.maximum.reduceat(stops, first), edits[chosen])


def _begins(rows: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Return the indices of the spans that overlap none before them. The spans are ordered by text and start."""
    width = int(stops.max(initial=0)) + 1
    reach = np.maximum.accumulate(rows * width + stops)  # a text's positions lie behind those of all texts before it
    return np.flatnonzero(np.append(True, (rows * width + starts)[1:] >= reach[:-1])[: len(rows)])
