"""The blocks that models are made of."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from datakit.trainer.models import layers


def test_only_predictable_tokens_count() -> None:
    tokens, segments = jnp.array([[5, 6, 7, 8, 9, 9]]), jnp.array([[1, 1, 1, 2, 2, 0]])
    mask = jnp.array([[True, True, False, True, True, False]])
    labels, counted = layers.next_tokens(tokens, segments, mask)
    assert labels[0, :5].tolist() == [6, 7, 8, 9, 9]
    assert counted[0].tolist() == [1, 0, 0, 1, 0, 0]  # 7 is masked, 8 begins a document, 9 is padding, the end


def test_a_transposition_that_is_stored_stays_out_of_the_product() -> None:
    rows = np.random.default_rng(0).normal(size=(2, 3, 16, 8)).astype(np.float32)

    def products(left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.einsum("abhr,abrs->abhs", layers.stored_transposed(left), right)

    compiled = jax.jit(products).lower(rows, rows).compile()
    assert "lhs_contracting_dims={3}" in (compiled.as_text() or "")
    np.testing.assert_allclose(compiled(rows, rows), np.einsum("abrh,abrs->abhs", rows, rows), rtol=1e-5, atol=1e-5)
