"""Muon equals optax's and PyTorch's where these have the same formulas, and its own formula elsewhere."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding

from datakit.errors import UsageError
from datakit.trainer.models import KIND, load_model
from datakit.trainer.models.weights import initialize, leaves, make_mesh, shardings
from datakit.trainer.optimizers import muon, muonh
from datakit.trainer.optimizers.adam import is_matrix
from datakit.trainer.optimizers.newton_schulz import orthogonalized
from datakit.trainer.optimizers.protocol import WeightStep
from datakit.trainer.optimizers.schedules import learning_rates, share
from datakit.trainer.optimizers.update import grouped, groups_of, initial_moments, moments_like
from tests.support.trainer.torch_optimizers import stepped
from tests.support.trainer.weight_tables import (
    MATRICES,
    STEPS,
    TABLE,
    compiled,
    followed,
    gradients_at,
    rates_for_optax,
    trained,
)

FLAT = leaves(TABLE)


@pytest.mark.parametrize("scale", ["rms", "spectral"])
def test_without_nesterov_steps_equal_those_of_optax(scale: Any) -> None:
    """With it, optax corrects the bias of both terms, which the published formula does not."""
    settings = muon.Config(learning_rate=0.02, adam_learning_rate=0.01, scale=scale, nesterov=False, clip_norm=1e9)
    dimensions: Any = {
        name: optax.contrib.MuonDimensionNumbers(len(FLAT[name].shape) - 2, len(FLAT[name].shape) - 1)
        if name in MATRICES
        else None
        for name in FLAT
    }
    theirs = optax.contrib.muon(
        rates_for_optax(settings, 0.02),
        eps=1e-7,
        weight_decay=0.1,
        nesterov=False,
        adam_b2=0.95,
        adam_learning_rate=rates_for_optax(settings, 0.01),
        muon_weight_dimension_numbers=dimensions,
        consistent_rms=0.2 if scale == "rms" else None,
    )
    params, ours = followed(theirs, 4), trained(settings, 4)[-1]
    for name in FLAT:
        np.testing.assert_allclose(ours[name], params[name], atol=1e-6, err_msg=name)


def test_nesterov_follows_the_published_formula() -> None:
    settings = muon.Config(learning_rate=0.02, schedule="constant", warmup=0.0, momentum=0.8, clip_norm=1e9)
    history = trained(settings, 3)
    value = np.asarray(history[0]["blocks/tall"], np.float64)
    mu = np.zeros_like(value)
    for step in range(3):
        gradient = np.asarray(gradients_at(step)["blocks"]["tall"], np.float64)
        mu = 0.8 * mu + 0.2 * gradient
        direction = orthogonalized(jnp.asarray(0.8 * mu + 0.2 * gradient, jnp.float32), 1)
        value = value - 0.02 * (0.2 * np.sqrt(8) * np.asarray(direction) + 0.1 * value)
        np.testing.assert_allclose(history[step + 1]["blocks/tall"], value, atol=2e-6)


@pytest.mark.parametrize(("scale", "adjust"), [("rms", "match_rms_adamw"), ("spectral", "original")])
def test_steps_equal_those_of_torch(scale: Any, adjust: str, tmp_path: Path) -> None:
    """PyTorch stores a matrix as [outputs, inputs]."""
    settings = muon.Config(learning_rate=0.02, scale=scale, clip_norm=1e9)
    rates = [float(np.float32(0.02 * share(settings, step, STEPS))) for step in range(4)]
    arguments = {"weight_decay": 0.1, "momentum": 0.95, "nesterov": True, "adjust_lr_fn": adjust}
    history = trained(settings, 4)

    def turned(tree: dict[str, Any]) -> dict[str, Any]:
        return {f"{name} {layer}": tree[name][layer].T for name in ("blocks/tall", "blocks/wide") for layer in range(3)}

    gradients = [turned(leaves(gradients_at(step))) for step in range(4)]
    theirs = stepped("Muon", arguments, turned(history[0]), gradients, rates, tmp_path)
    for name, value in turned(jax.device_get(history[-1])).items():
        np.testing.assert_allclose(value, theirs[name], atol=2e-6, err_msg=name)


def test_matrices_keep_one_moment_and_the_rest_two() -> None:
    for config in (muon.Config(), muonh.Config()):
        moments = moments_like(TABLE, grouped(TABLE, config), config)
        assert leaves(moments["mu"]).keys() == FLAT.keys()
        assert leaves(moments["nu"]).keys() == {"embed", "gain", "blocks/router", "head"}


def test_a_table_that_does_not_describe_matrices_is_refused() -> None:
    weight = dataclasses.replace(FLAT["blocks/experts"], stack=1)
    values = jnp.zeros(weight.shape)
    step = WeightStep("blocks/experts", weight, values, values, {"mu": values}, jnp.float32(0.1), jnp.float32(1))
    with pytest.raises(UsageError, match=r"weight blocks/experts .* after 1 stacked axes, 3 are left; correct `stack`"):
        muon.Config().update(step)


@pytest.mark.parametrize("kind", KIND.built_in)
def test_the_tables_of_built_in_models_describe_matrices(kind: str) -> None:
    model = load_model(kind)
    for path, weight in leaves(model.weights(model.Config())).items():
        assert not is_matrix(weight) or len(weight.shape) == weight.stack + 2, path


def test_the_head_belongs_to_adam() -> None:
    assert grouped(TABLE, muon.Config())["head"].group == "adam"
    assert grouped(TABLE, muonh.Config())["head"].group == "adamh"


@pytest.mark.parametrize("settings", [muon.Config(), muonh.Config()], ids=["muon", "muonh"])
def test_eight_devices_agree_with_one(settings: Any) -> None:
    table, mesh = grouped(TABLE, settings), make_mesh()
    rates, advance = learning_rates(settings, groups_of(table), 3, STEPS), compiled(settings)
    split = shardings(table, mesh)
    params, gradients = initialize(table, jax.random.key(0)), gradients_at(3)
    whole = advance(gradients, initial_moments(params, table, settings), params, jnp.int32(3), rates)
    with jax.set_mesh(mesh):
        params, gradients = (jax.device_put(tree, split) for tree in (params, gradients))
        spread = advance(gradients, initial_moments(params, table, settings), params, jnp.int32(3), rates)
    for (name, ours), theirs in zip(leaves(whole[0]).items(), leaves(spread[0]).values(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6, err_msg=name)
        assert isinstance(theirs.sharding, NamedSharding)
    for ours, theirs in zip(jax.tree.leaves(whole[1]), jax.tree.leaves(spread[1]), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
