"""The gradient that training computes together with the loss is that of the loss."""

from __future__ import annotations

import dataclasses
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datakit.trainer.accumulation import training_loss
from datakit.trainer.models import grug, loss, weights
from datakit.trainer.models.protocol import Tokens
from tests.support.trainer.small_models import SMALL, random_batch

ROWS, LENGTH, WIDTH, VOCABULARY = 8, 24, 16, 40
SHARED = {"z_loss": 0.02, "loss_piece": 8}


def inputs(dtype: Any = jnp.float32, confidence: float = 1.0) -> tuple[Any, Any, Tokens]:
    """Hidden states, a head and a batch with padding, documents and masked tokens. A large `confidence` makes the
    probabilities of the labels large.
    """
    random = np.random.default_rng(7)
    tokens = random.integers(0, VOCABULARY, (ROWS, LENGTH)).astype(np.int32)
    segments = np.where(np.arange(LENGTH) < 20, 1 + (np.arange(LENGTH) > 11), 0) * np.ones((ROWS, 1), np.int32)
    mask = random.random((ROWS, LENGTH)) < 0.8
    head = random.normal(size=(WIDTH, VOCABULARY))
    noise = random.normal(size=(ROWS, LENGTH, WIDTH))
    towards = head.T[np.roll(tokens, -1, axis=1)]
    hidden = noise + (confidence - 1) * towards
    return jnp.asarray(hidden, dtype), jnp.asarray(head, dtype), Tokens(*map(jnp.asarray, (tokens, segments, mask)))


def total(part: Any, z_loss: float) -> Any:
    """The sum that training differentiates, from the results for the positions."""
    return jnp.sum(part.losses * part.weights) + z_loss * part.sums["z_loss"]


def both_gradients(hidden: Any, head: Any, batch: Tokens, config: Any) -> tuple[Any, Any]:
    """The gradients of hidden states and head: of the sum `objective`, and of the sum of the losses."""

    def objective(hidden: Any, head: Any) -> Any:
        part = loss.part_of(hidden, head, batch, config, True)
        return part.objective, part

    def one_by_one(hidden: Any, head: Any) -> Any:
        part = loss.part_of(hidden, head, batch, config, False)
        assert part.objective is None
        return total(part, config.z_loss), part

    (value, part), found = jax.jit(jax.value_and_grad(objective, (0, 1), has_aux=True))(hidden, head)
    (expected_value, expected_part), expected = jax.jit(jax.value_and_grad(one_by_one, (0, 1), has_aux=True))(
        hidden, head
    )
    np.testing.assert_allclose(value, expected_value, rtol=2e-6)
    np.testing.assert_allclose(part.losses, expected_part.losses, rtol=1e-5, atol=1e-5)
    assert int(part.sums["predictions"]) == int(expected_part.sums["predictions"]) == int(jnp.sum(part.weights))
    return found, expected


@pytest.mark.parametrize("piece", [1, 8, 24, None])
def test_the_gradient_of_the_sum_is_that_of_the_losses(piece: int | None) -> None:
    config = SimpleNamespace(**SHARED | {"loss_piece": piece})
    found, expected = both_gradients(*inputs(), config)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, atol=3e-6 * float(jnp.abs(other).max()))


def test_the_gradient_agrees_with_finite_differences() -> None:
    hidden, head, batch = inputs()
    config = SimpleNamespace(**SHARED)
    found, _ = both_gradients(hidden, head, batch, config)
    random = np.random.default_rng(3)
    for number, place in enumerate((hidden, head)):
        direction = random.normal(size=place.shape)
        sides = (moved(hidden, head, number, step * direction) for step in (1e-4, -1e-4))
        above, below = (exact_total(*side, batch) for side in sides)
        slope = (above - below) / 2e-4
        assert float(np.sum(np.asarray(found[number], np.float64) * direction)) == pytest.approx(slope, rel=1e-4)


def moved(hidden: Any, head: Any, number: int, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both arrays in fp64, one of them moved by a step."""
    first, second = np.asarray(hidden, np.float64), np.asarray(head, np.float64)
    return (first + step, second) if number == 0 else (first, second + step)


def exact_total(hidden: np.ndarray, head: np.ndarray, batch: Tokens) -> float:
    """The objective, computed with numpy in fp64."""
    logits = hidden @ head
    top = logits.max(-1, keepdims=True)
    normalizer = np.log(np.exp(logits - top).sum(-1)) + top[..., 0]
    tokens, segments, mask = (np.asarray(array) for array in batch)
    counted = np.zeros(tokens.shape)
    counted[:, :-1] = mask[:, 1:] & (segments[:, 1:] == segments[:, :-1])
    own = np.take_along_axis(logits, np.roll(tokens, -1, axis=1)[..., None], -1)[..., 0]
    return float(np.sum(counted * (normalizer - own + SHARED["z_loss"] * normalizer**2)))


@pytest.mark.parametrize(("confidence", "piece"), [(1.0, 8), (1.5, 8), (1.0, LENGTH)])
def test_bf16_is_as_exact_as_for_single_losses(confidence: float, piece: int) -> None:
    """With a confidence of 1.5, most labels have a probability near 1, and their gradients are small differences."""
    hidden, head, batch = inputs(jnp.bfloat16, confidence)
    config = SimpleNamespace(z_loss=0.0, loss_piece=piece)
    _, exact = both_gradients(hidden.astype(jnp.float32), head.astype(jnp.float32), batch, config)
    found, one_by_one = both_gradients(hidden, head, batch, config)
    for one, other, right in zip(found, one_by_one, exact, strict=True):
        assert one.dtype == jnp.bfloat16
        errors = [float(jnp.linalg.norm((array.astype(jnp.float32) - right).ravel())) for array in (one, other)]
        assert errors[0] <= 1.5 * errors[1] + 1e-6


def test_nothing_else_has_a_gradient() -> None:
    hidden, head, batch = inputs()

    def others(hidden: Any, head: Any) -> Any:
        part = loss.part_of(hidden, head, batch, SimpleNamespace(**SHARED), True)
        return jnp.sum(part.losses) + part.sums["z_loss"]

    assert all(float(jnp.abs(found).max()) == 0 for found in jax.grad(others, (0, 1))(hidden, head))


@pytest.mark.parametrize("axes", [{}, {"tensor": 2}])
def test_a_mesh_computes_the_same(axes: dict[str, int]) -> None:
    hidden, head, batch = inputs()
    config = SimpleNamespace(**SHARED)
    alone, _ = both_gradients(hidden, head, batch, config)
    with jax.set_mesh(weights.make_mesh(devices=jax.devices()[:4], **axes)):
        shared, expected = both_gradients(hidden, head, batch, config)
    for one, other, third in zip(alone, shared, expected, strict=True):
        scale = float(jnp.abs(one).max())
        np.testing.assert_allclose(other, one, atol=3e-6 * scale)
        np.testing.assert_allclose(third, one, atol=3e-6 * scale)


def products_with_the_head(function: Any, *arguments: Any) -> int:
    """The number of matrix products in a compiled program, counted once for all pieces."""
    program = jax.jit(function).lower(*arguments).as_text()
    return program.count("stablehlo.dot_general")


def test_training_computes_the_logits_once() -> None:
    hidden, head, batch = inputs()
    config = SimpleNamespace(**SHARED)
    for summed, products in ((True, 3), (False, 4)):

        def value(hidden: Any, head: Any, summed: bool = summed) -> Any:
            part = loss.part_of(hidden, head, batch, config, summed)
            return part.objective if summed else total(part, config.z_loss)

        assert products_with_the_head(jax.grad(value, (0, 1)), hidden, head) == products


def test_the_trained_loss_is_that_of_an_evaluation() -> None:
    """The value and the gradients of a step are those of the losses that `apply` returns."""
    config = dataclasses.replace(SMALL, layers=1, z_loss=0.02)
    batch, state = random_batch(config, length=32, segments=2), grug.initial_state(config)
    params = weights.initialize(grug.weights(config), jax.random.key(1))

    def evaluated(params: Any) -> Any:
        output = grug.apply(params, state, batch, config)
        return jnp.sum(output.losses * output.weights) / jnp.sum(output.weights) + output.auxiliary

    value, expected = jax.jit(jax.value_and_grad(evaluated))(params)
    trained = jax.jit(jax.value_and_grad(partial(training_loss, grug, config, state, batch), has_aux=True))
    (total, _), found = trained(params)
    np.testing.assert_allclose(total, value, rtol=1e-6)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * max(float(jnp.abs(other).max()), 1e-3))
