"""Decides which copies of passages within a document are marked: those beyond the first ones of a group of equal
passages.
"""

from __future__ import annotations

import numpy as np

from datakit.passages.config import SearchConfig


def repeated(texts: np.ndarray, high: np.ndarray, low: np.ndarray, config: SearchConfig) -> np.ndarray:
    """Return the indices of the passages to mark, ascending: int64 [M]. Passages of different texts are not copies of
    one another.

    texts: the index of the text of each passage, ascending. high, low: its hash. In each text, the passages are in
    their order.

    >>> repeated(np.array([0, 0, 0, 1]), np.array([7, 8, 7, 7]), np.zeros(4), SearchConfig("line")).tolist()
    [2]
    """
    order = np.lexsort((low, high, texts))  # stable, so the copies of a passage keep their order
    columns = [column[order] for column in (texts, high, low)]
    begins = np.append(True, np.logical_or.reduce([column[1:] != column[:-1] for column in columns]))[: len(order)]
    first = np.flatnonzero(begins)
    sizes = np.diff(np.append(first, len(order)))
    ranks = np.arange(len(order)) - np.repeat(first, sizes)
    marked = (ranks >= config.keep) & (np.repeat(sizes, sizes) > config.threshold)
    return np.sort(order[marked])
