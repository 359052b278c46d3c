"""AdamH does what its formulas say."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax

from datakit.trainer.models.weights import leaves
from datakit.trainer.optimizers import adamh
from tests.support.trainer.weight_tables import (
    MATRICES,
    TABLE,
    followed,
    gradients_at,
    norms_of,
    rates_for_optax,
    trained,
)


def test_norms_stay_and_matrices_turn_by_the_rate() -> None:
    settings = adamh.Config(learning_rate=0.05, schedule="constant", warmup=0.0, expert_learning_rate=0.02)
    history, table = trained(settings, 10), leaves(TABLE)
    for name in (*MATRICES, "head"):
        rate = 0.02 if name == "blocks/experts" else 0.05
        norms = np.stack([norms_of(params[name], table[name]) for params in history])
        np.testing.assert_allclose(norms, np.broadcast_to(norms[0], norms.shape), rtol=2e-6)
        moved = np.asarray(norms_of(history[1][name] - history[0][name], table[name])) / norms[0]
        assert (moved <= rate * 1.01).all()
        assert (moved > rate * 0.5).all()


def test_a_matrix_follows_the_formula() -> None:
    settings = adamh.Config(learning_rate=0.03, schedule="constant", warmup=0.0, beta1=0.8, beta2=0.9, clip_norm=1e9)
    history = trained(settings, 3)
    value = np.asarray(history[0]["head"], np.float64)
    mu, nu = np.zeros_like(value), np.zeros_like(value)
    for step in range(3):
        gradient = np.asarray(gradients_at(step)["head"], np.float64)
        mu, nu = 0.8 * mu + 0.2 * gradient, 0.9 * nu + 0.1 * gradient**2
        direction = mu / (1 - 0.8 ** (step + 1)) / (np.sqrt(nu / (1 - 0.9 ** (step + 1))) + 1e-15)
        moved = value - 0.03 * np.linalg.norm(value) * direction / np.linalg.norm(direction)
        value = moved * np.linalg.norm(value) / np.linalg.norm(moved)
        np.testing.assert_allclose(history[step + 1]["head"], value, atol=2e-6)


def test_other_weights_follow_optax_adam() -> None:
    settings = adamh.Config(adam_learning_rate=0.02, clip_norm=1e9, epsilon=1e-8)
    params = followed(optax.adam(rates_for_optax(settings, 0.02), 0.9062, 0.998, 1e-8), 5)
    ours = trained(settings, 5)[-1]
    for name in ("embed", "gain", "blocks/router"):
        np.testing.assert_allclose(ours[name], params[name], atol=1e-6, err_msg=name)


def test_a_matrix_without_gradient_stays() -> None:
    value = jnp.ones((3, 3))
    np.testing.assert_array_equal(adamh.rotated(value, jnp.zeros((3, 3)), 0.1, 0), value)
