"""Routers choose and balance as they say."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.trainer.models import router, weights
from tests.support.trainer.small_models import MODELS, random_batch


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-(2.0**90), 2.0**90, width=32, allow_subnormal=False), min_size=30, max_size=30),
    st.integers(1, 30),
)
def test_kth_largest_is_exact(values: list[float], k: int) -> None:
    column = np.asarray(values, np.float32)[:, None]
    assert float(jax.jit(router.kth_largest)(jnp.asarray(column), jnp.int32(k))[0]) == float(np.sort(column[:, 0])[-k])


def statistics(logits: jax.Array, expert: jax.Array, valid: jax.Array) -> router.RouterStatistics:
    """The statistics of a layer's router over all tokens."""
    return router.averaged(router.router_sums(logits, expert, valid), expert.shape[1])


def reference_bias(logits: np.ndarray, bias: np.ndarray, choices: int) -> np.ndarray:
    """Quantile balancing in float64, by sorting."""
    tokens, experts = logits.shape
    bar = np.sort(logits + bias, axis=1)[:, -(choices + 1)]
    excess = np.sort(logits - bar[:, None], axis=0)[::-1]
    threshold = excess[max(1, tokens * choices // experts) - 1]
    return -threshold - (-threshold).mean()


def test_quantile_balancing_equals_a_float64_reference() -> None:
    generator = np.random.default_rng(0)
    for tokens, experts, choices in ((500, 16, 4), (37, 8, 2), (3, 8, 2)):
        logits = generator.normal(size=(tokens, experts)) * 2
        bias = generator.normal(size=experts)
        ours = router.balanced_bias(
            router.quantile_thresholds(
                jnp.asarray(logits, jnp.float32), jnp.asarray(bias, jnp.float32), choices, jnp.ones(tokens, bool)
            )
        )
        np.testing.assert_allclose(ours, reference_bias(logits, bias, choices), atol=2e-6)
        assert abs(float(ours.mean())) < 1e-6


def test_quantile_balancing_evens_a_skewed_load() -> None:
    generator = np.random.default_rng(1)
    logits = jnp.asarray(generator.normal(size=(4000, 16)) + np.linspace(-2, 2, 16), jnp.float32)
    valid, bias = jnp.ones(4000, bool), jnp.zeros(16)
    spread = []
    for _ in range(6):
        load = statistics(logits, router.sigmoid_route(logits, bias, 4).expert, valid).load
        spread.append(float(load.max() * 16))
        bias = router.balanced_bias(router.quantile_thresholds(logits, bias, 4, valid))
    assert spread[0] > 2.0
    assert spread[-1] < 1.1


def test_padding_changes_neither_bias_nor_statistics() -> None:
    generator = np.random.default_rng(2)
    logits = jnp.asarray(generator.normal(size=(120, 8)), jnp.float32)
    valid = jnp.arange(120) < 100
    bias = jnp.zeros(8)
    padded = router.quantile_thresholds(logits, bias, 2, valid)
    np.testing.assert_array_equal(padded, router.quantile_thresholds(logits[:100], bias, 2, valid[:100]))
    expert = router.sigmoid_route(logits, bias, 2).expert
    alone = statistics(logits[:100], expert[:100], valid[:100])
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), statistics(logits, expert, valid), alone)


def test_the_bias_chooses_and_never_weighs() -> None:
    logits = jnp.asarray([[3.0, 2.0, 1.0, 0.0]])
    routing = router.sigmoid_route(logits, jnp.asarray([0.0, -9.0, 0.0, 0.0]), 2)
    assert routing.expert[0].tolist() == [0, 2]
    np.testing.assert_allclose(routing.share[0], jax.nn.sigmoid(jnp.asarray([3.0, 1.0])), rtol=1e-6)


def test_even_routing_has_known_statistics() -> None:
    logits = jnp.log(jnp.tile(jnp.eye(4) * 0.7 + 0.1, (5, 1)))
    stats = statistics(logits, router.softmax_route(logits, 1, False).expert, jnp.ones(20, bool))
    np.testing.assert_allclose(router.load_entropy(stats.load), np.log(4), rtol=1e-6)
    np.testing.assert_allclose(router.balance_loss(stats.load, stats.probability, 1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("name", ["grug", "olmoe", "latent"])
def test_the_loss_of_the_routers_is_a_metric_without_the_z_loss_of_the_logits(name: str) -> None:
    module, config = MODELS[name]
    config = dataclasses.replace(config, z_loss=0.1, router_z_loss=0.3)
    params = weights.initialize(module.weights(config), jax.random.key(0))
    output = module.apply(params, module.initial_state(config), random_batch(config, rows=2), config)
    found = {key: float(jnp.mean(value)) for key, value in output.metrics.items()}
    balance = config.balance_loss * found["router/pooled_balance_loss"] if name == "olmoe" else 0.0
    assert found["router/aux_loss_weighted"] == pytest.approx(0.3 * found["router/router_z_loss"] + balance)
    assert float(output.auxiliary) == pytest.approx(found["router/aux_loss_weighted"] + 0.1 * found["z_loss"])
