"""A model computes the same for every size of the expert and tensor axes: losses, gradients, biases and drops."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from datakit.trainer.accumulation import training_loss
from datakit.trainer.models import grug, latent_moe, olmoe, weights
from datakit.trainer.models.weights import leaves
from tests.support.trainer.small_models import LATENT, MIXED, SMALL, random_batch

FEWER: dict[str, Any] = {"layers": 2, "vocabulary": 98}
MIXTURE = dataclasses.replace(MIXED, dense_layers=(0,), query_key_norm="whole", **FEWER)
MODELS: dict[str, tuple[Any, Any]] = {
    "grug": (grug, dataclasses.replace(SMALL, **FEWER)),
    "olmoe": (olmoe, MIXTURE),
    "latent": (latent_moe, dataclasses.replace(LATENT, **FEWER)),
}
DROPPING: dict[str, Any] = {"capacity_factor": 0.75, "capacity_rows": 2, "capacity_groups": 8}
ROWS = 16


@functools.cache
def parameters(model: str) -> Any:
    module, config = MODELS[model]
    return jax.jit(lambda key: weights.initialize(module.weights(config), key))(jax.random.key(1))


def batch_of(config: Any) -> Any:
    """Random tokens in two documents per row, of which the last third of each second row is padding."""
    batch = random_batch(config, rows=ROWS, segments=2, length=24)
    padding = (jnp.arange(ROWS) % 2 == 1)[:, None] & (jnp.arange(24) >= 16)
    return batch._replace(segments=jnp.where(padding, 0, batch.segments), loss_mask=~padding)


def run(module: Any, config: Any, params: Any, batch: Any) -> dict[str, Any]:
    """Losses, gradients, the next state and metrics, by name."""

    def loss(params: Any, batch: Any) -> Any:
        total, (_, output) = training_loss(module, config, module.initial_state(config), batch, params)
        return total, {"losses": output.losses, "state": output.state, "metrics": output.metrics}

    (value, rest), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, batch)
    return leaves({"loss": value, "gradients": gradients, **rest})


@functools.cache
def alone(model: str, dropping: bool) -> dict[str, Any]:
    """The result on one device, by the plainest backend."""
    module, config = MODELS[model]
    config = dataclasses.replace(config, **(DROPPING if dropping else {}))
    return run(module, config, parameters(model), batch_of(config))


def split(model: str, size: int, tensor: int = 1, **changes: Any) -> dict[str, Any]:
    """The result on eight devices, of which `size` share the experts, and `tensor` the heads and the vocabulary."""
    module, config = MODELS[model]
    config = dataclasses.replace(config, **changes)
    mesh = weights.make_mesh(experts=size, tensor=tensor)
    with jax.set_mesh(mesh):
        params = jax.device_put(parameters(model), weights.shardings(module.weights(config), mesh))
        batch = jax.device_put(batch_of(config), NamedSharding(mesh, P(weights.BATCH)))
        return run(module, config, params, batch)


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compare all values, relative to the largest entry of each."""
    assert ours.keys() == theirs.keys()
    for path, value in theirs.items():
        limit = 1e-5 * max(1.0, np.abs(value).max()) if path.startswith("loss") else 1e-5 * np.abs(value).max()
        np.testing.assert_allclose(ours[path], value, atol=limit + 1e-9, rtol=0, err_msg=path)


@pytest.mark.parametrize(
    ("model", "size", "exchange"),
    [
        ("grug", 2, "all_to_all"),
        ("grug", 8, "ring"),
        ("olmoe", 4, "ring"),
        ("olmoe", 8, "all_to_all"),
        ("latent", 4, "all_to_all"),
    ],
)
def test_losses_and_gradients_do_not_depend_on_the_expert_axis(model: str, size: int, exchange: str) -> None:
    found = split(model, size, exchange=exchange, moe_backend="ragged")
    assert_same(found, alone(model, False))
    counts = (assignments(values["metrics/router/routing_hist"], model) for values in (found, alone(model, False)))
    np.testing.assert_array_equal(*counts)


def assignments(shares: Any, model: str) -> Any:
    """The numbers of assignments behind the experts' shares, which are rounded."""
    config = MODELS[model][1]
    return np.rint(shares * np.sum(np.asarray(batch_of(config).segments) > 0) * config.experts_per_token)


@pytest.mark.parametrize(
    ("model", "size", "exchange"), [("grug", 1, "auto"), ("grug", 4, "all_to_all"), ("olmoe", 8, "ring")]
)
def test_the_same_assignments_are_dropped_on_any_mesh(model: str, size: int, exchange: str) -> None:
    found, usual = split(model, size, exchange=exchange, moe_backend="tiles", **DROPPING), alone(model, True)
    assert_same(found, usual)
    name = "metrics/router/capacity_overflow_rate"
    np.testing.assert_allclose(found[name], usual[name], rtol=1e-6)  # a different number would be off by 1e-3
    assert np.all(usual[name] > 0.2)


@pytest.mark.parametrize(("model", "size"), [("grug", 2), ("olmoe", 1)])
def test_losses_and_gradients_do_not_depend_on_the_tensor_axis(model: str, size: int) -> None:
    assert_same(split(model, size, 2, moe_backend="ragged", loss_piece=8), alone(model, False))
