"""Samples the experts and shares of tokens, once per case and outside the timed part, and describes the load.

    random     independent choices: the largest of normal scores
    runs       neighbouring tokens tend to have the same experts, as in text: the preferred expert of a token stays that
               of its predecessor with probability 0.98
    skewed     some experts are popular: expert e has a popularity of 1 / (e + 1)

A token's shares are the softmax of its chosen scores. The same seed gives the same routing on every machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.trainer.bench.case import Case

STAY = 0.98  # mean run length of 50 tokens
PREFERENCE = 6.0  # added to the score of the preferred expert, in standard deviations of the scores


class Routed(NamedTuple):
    """expert [T, K] int32, share [T, K] float32."""

    expert: np.ndarray
    share: np.ndarray


def sample(case: Case, seed: int = 0) -> Routed:
    """Return the experts and shares of all tokens of a case."""
    dice = np.random.default_rng(seed)
    scores = dice.standard_normal((case.tokens, case.experts), dtype=np.float32)
    if case.distribution == "runs":
        changes = np.flatnonzero(np.concatenate([[True], dice.random(case.tokens - 1) >= STAY]))
        preferred = dice.integers(0, case.experts, changes.size)
        lengths = np.diff(np.append(changes, case.tokens))
        scores[np.arange(case.tokens), np.repeat(preferred, lengths)] += PREFERENCE
    if case.distribution == "skewed":
        scores += np.log(1 / np.arange(1, case.experts + 1, dtype=np.float32))
    expert = np.argsort(-scores, axis=1, kind="stable")[:, : case.choices].astype(np.int32)
    chosen = np.take_along_axis(scores, expert, axis=1)
    weight = np.exp(chosen - chosen.max(axis=1, keepdims=True))
    return Routed(expert, (weight / weight.sum(axis=1, keepdims=True)).astype(np.float32))


def described(expert: np.ndarray, experts: int) -> dict[str, float]:
    """Return statistics of the load per expert, and of how long first choices stay the same."""
    load = np.bincount(expert.ravel(), minlength=experts)
    first = expert[:, 0]
    starts = np.flatnonzero(np.concatenate([[True], first[1:] != first[:-1]]))
    runs = np.diff(np.append(starts, first.size))
    return {
        "load_min": int(load.min()),
        "load_max": int(load.max()),
        "load_std": float(load.std()),
        "load_cv": float(load.std() / max(load.mean(), 1e-12)),
        "run_mean": float(runs.mean()),
        "run_p95": float(np.percentile(runs, 95)),
        "run_max": int(runs.max()),
    }
