"""The OLMoE family computes what the published implementation computes, to 1e-5, gradients and training included."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datakit.trainer import hub
from datakit.trainer import optimizer as optimizers
from datakit.trainer.models import olmoe
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.models.weights import Tree, leaves
from datakit.trainer.optimizer import Optimizer
from tests.support.data import need_data

safetensors = pytest.importorskip("safetensors.numpy")


FAMILIES = ("olmoe", "mixtral")


IGNORED = -100


class Golden:
    """One tiny checkpoint with the published implementation's figures in float64."""

    def __init__(self, family: str) -> None:
        folder = need_data() / "moe-golden" / family
        self.config = hub.config_from_hub(
            json.loads((folder / "config.json").read_text()), compute="float32", remat="none", loss_piece=16
        )
        self.params = hub.parameters_from_hub(safetensors.load_file(folder / "model.safetensors"), self.config)
        self.tensors = safetensors.load_file(folder / "golden.safetensors")
        self.figures = json.loads((folder / "golden.json").read_text())
        ids = self.tensors["input_ids"].astype(np.int32)
        counted = self.tensors["labels"] != IGNORED
        self.batch = Tokens(jnp.asarray(ids), jnp.ones_like(ids), jnp.asarray(counted))

    def gradients(self) -> Tree:
        """The published gradients, in our names."""
        named = {name[5:]: value for name, value in self.tensors.items() if name.startswith("grad.")}
        return hub.parameters_from_hub(named, self.config)

    def loss(self, params: Tree) -> tuple[Any, Any]:
        """The total loss, and the cross entropy alone."""
        output = olmoe.apply(params, {}, self.batch, self.config)
        mean = jnp.sum(output.losses * output.weights) / jnp.sum(output.weights)
        return mean + output.auxiliary, mean


@pytest.fixture(scope="module", params=FAMILIES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


def test_logits_and_router_logits(golden: Golden) -> None:
    @jax.jit
    def forward(params: Tree) -> Any:
        hidden, (_, router) = olmoe.encode(params, golden.batch, golden.config)
        return hidden @ params["head"], router

    logits, router = forward(golden.params)
    np.testing.assert_allclose(logits, golden.tensors["logits64"], atol=1e-5)
    for layer in range(golden.config.layers):
        np.testing.assert_allclose(router[layer], golden.tensors[f"router_logits.{layer}"], atol=1e-5)


def test_losses_and_every_gradient(golden: Golden) -> None:
    (total, mean), gradients = jax.jit(jax.value_and_grad(golden.loss, has_aux=True))(golden.params)
    assert float(mean) == pytest.approx(golden.figures["loss_ce64"], abs=1e-5)
    assert float(total) == pytest.approx(golden.figures["loss_total64"], abs=1e-5)
    ours, theirs = leaves(gradients), leaves(golden.gradients())
    assert ours.keys() == theirs.keys()
    for path, value in ours.items():
        np.testing.assert_allclose(value, theirs[path], rtol=1e-5, atol=1e-5 * np.abs(theirs[path]).max(), err_msg=path)


def test_ten_steps_of_adamw(golden: Golden) -> None:
    settings = Optimizer(
        kind="adamw",
        learning_rate=1e-3,
        beta1=0.9,
        beta2=0.95,
        epsilon=1e-8,
        weight_decay=0.1,
        schedule="constant",
        warmup=0.0,
    )
    table, schedule = olmoe.weights(golden.config), optimizers.multiplier(settings, 10)

    @jax.jit
    def step(params: Tree, moments: Tree, number: Any) -> Any:
        (total, _), gradients = jax.value_and_grad(golden.loss, has_aux=True)(params)
        params, moments, figures = optimizers.update(gradients, moments, params, number, table, settings, schedule)
        return params, moments, total, figures["grad_norm/all"]

    params, moments = golden.params, optimizers.initial_moments(golden.params)
    for number, (loss, norm) in enumerate(golden.figures["adamw_loss_gradnorm"]):
        params, moments, ours, our_norm = step(params, moments, jnp.int32(number))
        assert float(ours) == pytest.approx(loss, abs=1e-4)
        assert float(our_norm) == pytest.approx(norm, rel=1e-4)
