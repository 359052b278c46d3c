"""Computes the S-curve of the band settings: a pair's candidate probability as a function of its Jaccard similarity."""

from __future__ import annotations

from collections.abc import Iterable

SHOWN = tuple(tenth / 20 for tenth in range(6, 20))  # 0.3, 0.35, ... 0.95


def candidate_probability(jaccard: float, bands: int, rows: int) -> float:
    """Return the probability that two documents agree in all `rows` minima of at least one of `bands` bands.

    >>> round(candidate_probability(0.8, 14, 8), 3)
    0.924
    """
    return 1.0 - (1.0 - jaccard**rows) ** bands


def s_curve(bands: int, rows: int, points: Iterable[float] = SHOWN) -> list[list[float]]:
    """Return the pairs [Jaccard similarity, probability] that the manifest lists."""
    return [[jaccard, round(candidate_probability(jaccard, bands, rows), 6)] for jaccard in points]
