"""The blocks that models are made of."""

from __future__ import annotations

import jax.numpy as jnp

from datakit.trainer.models import layers


def test_only_predictable_tokens_count() -> None:
    tokens, segments = jnp.array([[5, 6, 7, 8, 9, 9]]), jnp.array([[1, 1, 1, 2, 2, 0]])
    mask = jnp.array([[True, True, False, True, True, False]])
    labels, counted = layers.next_tokens(tokens, segments, mask)
    assert labels[0, :5].tolist() == [6, 7, 8, 9, 9]
    assert counted[0].tolist() == [1, 0, 0, 1, 0, 0]  # 7 is masked, 8 begins a document, 9 is padding, the end
