"""Newton-Schulz orthogonalizes each matrix of a stack on its own."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax.contrib import _muon  # type: ignore[attr-defined]

from datakit.trainer.models.weights import make_mesh
from datakit.trainer.optimizers.newton_schulz import COEFFICIENTS, orthogonalized


@pytest.mark.parametrize("shape", [(6, 6), (12, 5), (5, 12)])
def test_singular_values_become_about_one_and_vectors_stay(shape: tuple[int, int]) -> None:
    matrix = np.asarray(jax.random.normal(jax.random.key(1), shape))
    left, before, right = np.linalg.svd(matrix, full_matrices=False)
    found = np.asarray(orthogonalized(jnp.asarray(matrix), 0))
    rotated = left.T @ found @ right.T
    after = np.diagonal(rotated)
    assert before.max() / before.min() > 1.5
    assert ((after > 0.6) & (after < 1.3)).all()
    np.testing.assert_allclose(rotated, np.diag(after), atol=1e-4)


@pytest.mark.parametrize(("shape", "stack"), [((9, 4), 0), ((3, 4, 9), 1), ((2, 3, 9, 4), 2)])
def test_each_matrix_equals_that_of_optax(shape: tuple[int, ...], stack: int) -> None:
    matrices = jax.random.normal(jax.random.key(0), shape)
    ours = jax.jit(orthogonalized, static_argnums=1)(matrices, stack).reshape(-1, *shape[-2:])
    theirs = jax.jit(lambda one: _muon.orthogonalize_via_newton_schulz(one, jnp.asarray(COEFFICIENTS), eps=1e-7))
    for mine, one in zip(ours, matrices.reshape(-1, *shape[-2:]), strict=True):
        np.testing.assert_allclose(mine, theirs(one), atol=2e-6)


def test_a_zero_matrix_stays_zero() -> None:
    np.testing.assert_array_equal(orthogonalized(jnp.zeros((3, 4, 5)), 1), jnp.zeros((3, 4, 5)))


def test_bf16_products_have_fp32_sums_and_results() -> None:
    matrices = jax.random.normal(jax.random.key(0), (3, 16, 24))
    rounded: Any = jax.jit(lambda x: orthogonalized(x, 1, 5, jnp.bfloat16))
    assert rounded(matrices).dtype == jnp.float32
    np.testing.assert_allclose(rounded(matrices), orthogonalized(matrices, 1), atol=0.05)
    products = [line for line in rounded.lower(matrices).as_text().splitlines() if "dot_general" in line]
    assert products
    for line in products:
        inputs, _, result = line.rpartition("-> ")
        assert inputs.count("xbf16>") == 2
        assert result.split(" ")[0].endswith("xf32>")


@pytest.mark.parametrize(("shape", "stack"), [((8, 6, 16), 1), ((3, 6, 16), 1), ((2, 8, 16, 6), 2), ((6, 16), 0)])
def test_eight_devices_agree_with_one(shape: tuple[int, ...], stack: int) -> None:
    matrices = jax.random.normal(jax.random.key(0), shape)
    with jax.set_mesh(make_mesh()):
        program = jax.jit(orthogonalized, static_argnums=1).lower(matrices, stack).compile()
        spread = program(matrices)
    np.testing.assert_allclose(spread, orthogonalized(matrices, stack), atol=2e-6)
    text = program.as_text() or ""
    assert "f32[6,6]" in text  # the product of a matrix with itself, for the only matrix of a device
    assert not re.search(r"f32\[[2-9],6,6\]", text)
