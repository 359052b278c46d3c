"""Computes the S-curve: the probability that a pair of documents becomes a candidate, by Jaccard similarity."""

from __future__ import annotations

from collections.abc import Iterable

SHOWN = tuple(tenth / 20 for tenth in range(6, 20))  # 0.3, 0.35, ... 0.95


def candidate_probability(jaccard: float, bands: int, rows: int) -> float:
    """Return the probability that at least one of `bands` bands of `rows` minima agrees: 1 - (1 - J**rows)**bands.

    >>> round(candidate_probability(0.8, 14, 8), 3)
    0.924
    """
    return 1.0 - (1.0 - jaccard**rows) ** bands


def s_curve(bands: int, rows: int, points: Iterable[float] = SHOWN) -> list[list[float]]:
    """Return [[Jaccard, probability], ...] for the manifest."""
    return [[jaccard, round(candidate_probability(jaccard, bands, rows), 6)] for jaccard in points]
