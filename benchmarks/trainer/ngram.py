"""Unigram and interpolated bigram models: baselines that a model must beat to have learned more than counts.

They are fitted on the training tokens of the model they are compared with, over the same predictions (inside documents,
not masked), and scored on the same validation tokens in the same bits per byte. The bigram is interpolated with the
unigram as by Witten and Bell, p(w|v) = (c(v,w) + k u(v) p(w)) / (c(v) + k u(v)), where u(v) is the number of distinct
followers of v. The constant k is chosen on the validation tokens themselves, per tag, which favors the baseline.

Memory: a table of vocabulary squared, 4 bytes per entry (268 MB at 8,192 tokens).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from datakit.trainer.device_feed import HostBatch
from datakit.trainer.evaluation.totals import Totals

STRENGTHS = tuple(2.0**power for power in range(-3, 6))


def predictions(batch: HostBatch) -> tuple[np.ndarray, np.ndarray]:
    """(previous token, predicted token) of all predictions that count, as the trainer counts them."""
    counted = batch.loss_mask[:, 1:] & (batch.segments[:, 1:] == batch.segments[:, :-1])
    return batch.tokens[:, :-1][counted].astype(np.int64), batch.tokens[:, 1:][counted].astype(np.int64)


@dataclass(frozen=True)
class Counts:
    """Counts of the training tokens."""

    pairs: np.ndarray  # int32 [V, V]

    @classmethod
    def of(cls, batches: Iterable[HostBatch], vocabulary: int) -> Counts:
        """Count all predictions of some batches."""
        pairs = np.zeros(vocabulary * vocabulary, np.int32)
        for batch in batches:
            before, after = predictions(batch)
            codes, counts = np.unique(before * vocabulary + after, return_counts=True)
            pairs[codes] += counts.astype(np.int32)
        return cls(pairs.reshape(vocabulary, vocabulary))

    @property
    def tokens(self) -> int:
        """Number of predictions counted."""
        return int(self.pairs.sum(dtype=np.int64))

    def unigram(self) -> np.ndarray:
        """p(w) with add-one smoothing, so that nothing is impossible."""
        counts = self.pairs.sum(axis=0, dtype=np.int64) + 1
        return counts / counts.sum()

    def bigram_of(self, before: np.ndarray, after: np.ndarray, strength: float) -> np.ndarray:
        """p(after | before), interpolated."""
        followers = np.count_nonzero(self.pairs, axis=1)[before]
        total = self.pairs.sum(axis=1, dtype=np.int64)[before]
        seen, single = self.pairs[before, after], self.unigram()[after]
        weight = strength * followers
        return np.where(total > 0, (seen + weight * single) / np.maximum(total + weight, 1e-30), single)


def score(
    counts: Counts, batches: Iterable[HostBatch], token_bytes: np.ndarray
) -> dict[str, tuple[Totals, float | None]]:
    """{"unigram": (totals, None), "bigram": (totals, the best k)} over validation batches."""
    pairs = [predictions(batch) for batch in batches]
    before, after = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    size, length = len(after), int(token_bytes[after].sum())

    def totals(probability: np.ndarray) -> Totals:
        return Totals(float(-np.log(probability).sum()), size, length)

    tried = {strength: totals(counts.bigram_of(before, after, strength)) for strength in STRENGTHS}
    best = min(tried, key=lambda strength: tried[strength].nats)
    return {"unigram": (totals(counts.unigram()[after]), None), "bigram": (tried[best], best)}


def bits_per_byte(totals: Totals) -> float:
    """Bits per byte of a scored model."""
    return totals.nats / math.log(2) / totals.bytes
