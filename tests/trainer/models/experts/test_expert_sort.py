"""Assignments are sorted by expert."""

from __future__ import annotations

import jax
import numpy as np

from datakit.trainer.models.experts.expert_sort import sort_by_expert


def test_rows_of_an_expert_keep_the_order_of_tokens() -> None:
    expert = jax.random.randint(jax.random.key(0), (50, 3), 0, 6)
    order = sort_by_expert(expert, 6)
    for rows in np.split(np.asarray(order.token), np.cumsum(order.counts)[:-1]):
        assert (np.diff(rows) >= 0).all()
    assert order.counts.sum() == 50 * 3
